// The control room: puts the panels together, owns the view's place in time, and redraws at most once a frame.
import { createBar, createHeader, createSentence } from "./bar.js";
import { Cursor } from "./cursor.js";
import { h, setAttr } from "./dom.js";
import { ownersOf, releasing } from "./ledger.js";
import { createChat } from "./panel_chat.js";
import { createCode } from "./panel_code.js";
import { createHashes } from "./panel_hashes.js";
import { createInvariants } from "./panel_invariants.js";
import { createPool } from "./panel_pool.js";
import { createQueue } from "./panel_queue.js";
import { createSequences } from "./panel_sequences.js";
import { createTables } from "./panel_tables.js";
import { createTimeline } from "./panel_timeline.js";
import { Selection } from "./selection.js";
import { connectStore } from "./store.js";
import { eventRefs, lookupWalk } from "./story.js";
import { watchTheme } from "./theme.js";

/** Every panel: its maker and the column it stands in where there are two. */
const PANELS = {
  pool: [createPool, "wide"], tables: [createTables, "wide"], timeline: [createTimeline, "wide"], sequences: [createSequences, "wide"],
  queue: [createQueue, "narrow"], hashes: [createHashes, "narrow"], code: [createCode, "narrow"],
  invariants: [createInvariants, "narrow"], chat: [createChat, "narrow"],
};

const SILENCE = 6000;   // ms without an answer from the kernel after which the view says so

class ControlRoom {
  /** @param {{model: object, el: HTMLElement}} host  @param {import("./store.js").RowStore} store */
  constructor({ model, el }, store, signal) {
    Object.assign(this, { model, store, signal });
    this.cursor = new Cursor(store);
    this.meta = model.get("meta") ?? {};
    this.status = model.get("status") ?? {};
    this.live = this.meta.mode !== "replay";
    this.follow = this.live;
    this.playing = false;
    this.speed = 4;
    this.localError = this.localNotice = "";
    this.timers = { play: 0, silence: 0, frame: 0 };
    this.build(el);
    this.listen();
    this.onRows();
    this.draw();
  }

  // --- what the panels read ---
  get state() { return this.cursor.state; }
  get frame() { return this.cursor.frame; }
  get end() { return this.cursor.end; }
  get row() { return this.cursor.row; }
  get vocabSize() { return this.store.vocab.size; }

  /** Whether any request is alive at the newest frame, as far as this view can tell without walking there. */
  newestLive() {
    return this.frame < this.end || this.state.waiting.length + this.state.running.length > 0;
  }

  build(el) {
    this.root = h("div", {
      class: "nve-room", "data-nve-view": "control-room", "data-lm-suppress-shortcuts": "true", tabindex: "-1",
      role: "region", "aria-label": this.meta.title || "Control room",
    });
    this.parts = [createHeader(this), createBar(this), createSentence(this)];
    const columns = { wide: h("div", { class: "nve-column nve-wide" }), narrow: h("div", { class: "nve-column nve-narrow" }) };
    (this.meta.panels ?? Object.keys(PANELS)).forEach((name, order) => {
      if (!PANELS[name]) return;
      const [create, column] = PANELS[name];
      const panel = create(this);
      panel.node.style.order = order;   // one column shows the panels in the order asked for
      columns[column].append(panel.node);
      this.parts.push(panel);
    });
    this.selection = new Selection(this.root, () => this.owners, () => this.panelsSelect(), this.signal);
    const used = Object.values(columns).filter((column) => column.children.length);
    const grid = h("div", { class: `nve-grid${used.length === 1 ? " nve-single" : ""}` }, ...used);
    this.root.append(...this.parts.slice(0, 3).map((part) => part.node), grid);
    el.replaceChildren(h("div", { class: "nve-host" }, this.root));
    watchTheme(this.root, this.signal);
  }

  panelsSelect() {
    for (const part of this.parts) part.select?.();
  }

  listen() {
    const onRows = () => this.onRows();
    const onStatus = () => {
      this.status = this.model.get("status") ?? {};
      this.heard();
      this.invalidate();
    };
    const onMeta = () => {
      this.meta = this.model.get("meta") ?? {};
      this.invalidate();
    };
    const onSources = () => this.invalidate();
    this.store.listeners.add(onRows);
    this.model.on("change:status", onStatus);
    this.model.on("change:meta", onMeta);
    this.model.on("change:sources", onSources);
    this.root.addEventListener("keydown", (event) => this.onKey(event), { signal: this.signal });
    this.signal.addEventListener("abort", () => {
      this.store.listeners.delete(onRows);
      this.model.off("change:status", onStatus);
      this.model.off("change:meta", onMeta);
      this.model.off("change:sources", onSources);
      clearTimeout(this.timers.play);
      clearTimeout(this.timers.silence);
      cancelAnimationFrame(this.timers.frame);
    });
  }

  onRows() {
    this.heard();
    try {
      if (this.follow) this.cursor.goto(this.end);
      else if (this.cursor.generation !== this.store.generation) this.cursor.goto(0);
    } catch (error) {
      this.fail(error);
    }
    this.invalidate();
  }

  // --- time ---

  goto(frame) {
    try {
      this.cursor.goto(frame);
    } catch (error) {
      this.fail(error);
    }
    this.follow = this.live && !this.playing && this.frame === this.end;
    this.invalidate();
  }

  eventBy(n) { this.stop(); this.goto(this.frame + n); }
  stepBy(direction) { this.stop(); this.goto(this.cursor.stepTarget(direction)); }
  toPresent() { this.stop(); this.goto(this.end); }

  togglePlay() {
    if (this.playing) {
      this.stop();
      return this.goto(this.frame);
    }
    if (this.frame === this.end) this.goto(this.live ? this.cursor.stepTarget(-1) : 0);
    this.playing = true;
    this.follow = false;
    this.tick();
    this.invalidate();
  }

  tick() {
    clearTimeout(this.timers.play);
    this.timers.play = setTimeout(() => {
      const next = this.frame + 1;
      if (next >= this.end) this.stop();
      this.goto(next);
      if (this.playing) this.tick();
    }, 1000 / this.speed);
  }

  stop() {
    this.playing = false;
    clearTimeout(this.timers.play);
  }

  setSpeed(eventsPerSecond) {
    this.speed = eventsPerSecond;
    if (this.playing) this.tick();
  }

  // --- the live engine ---

  /** Send a command to the engine; it acts on the present, so the view goes there first. */
  command(message) {
    this.toPresent();
    this.localError = this.localNotice = "";
    try {
      this.model.send(message);
    } catch (error) {
      this.localError = `The kernel could not be reached: ${error.message}. Run the cell again to connect; what was recorded can still be scrubbed.`;
    }
    clearTimeout(this.timers.silence);
    this.timers.silence = setTimeout(() => {
      this.localNotice = "The kernel has not answered yet. If it was restarted or is gone, run the cell again; what was recorded can still be scrubbed.";
      this.invalidate();
    }, SILENCE);
    this.invalidate();
  }

  heard() {
    clearTimeout(this.timers.silence);
    this.localNotice = "";
  }

  fail(error) {
    console.error(error);
    this.localError = `This view stumbled: ${error.message}`;
  }

  // --- keyboard ---

  onKey(event) {
    event.stopPropagation();   // no key reaches the notebook
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    const { target } = event;
    const typing = target.closest("textarea,select,input:not([type=range])");
    if (typing || (event.key === " " && target.closest("button,summary,input"))) return;
    const action = {
      ArrowLeft: () => (event.shiftKey ? this.stepBy(-1) : this.eventBy(-1)),
      ArrowRight: () => (event.shiftKey ? this.stepBy(1) : this.eventBy(1)),
      Home: () => { this.stop(); this.goto(0); }, End: () => this.toPresent(), " ": () => this.togglePlay(),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // --- drawing ---

  invalidate() {
    if (this.timers.frame || this.signal.aborted) return;
    this.timers.frame = requestAnimationFrame(() => {
      this.timers.frame = 0;
      this.draw();
    });
  }

  draw() {
    const { frame, store } = this;
    this.moved = frame - (this.drawn ?? frame);   // 1 or -1: one event was walked, and motion can show it
    this.drawn = frame;
    this.released = releasing(store.rows, frame);
    this.owners = ownersOf(this.state, this.released);
    this.refs = eventRefs(this.row);
    this.walk = lookupWalk(store, frame);
    for (const part of this.parts) {
      try {
        part.update();
      } catch (error) {
        this.fail(error);
      }
    }
    setAttr(this.root, "data-frame", frame);
    setAttr(this.root, "data-frames", this.end);
    setAttr(this.root, "data-step", this.state.step);
    setAttr(this.root, "data-following", String(this.follow));
    setAttr(this.root, "data-status", this.status.state ?? "");
    this.selection.light();
  }
}

/** One call a widget model, so the row store lives as long as the model and all of its views share it. */
export default function controlRoom() {
  let store = null;
  return {
    initialize({ model, signal }) {
      const controller = new AbortController();
      signal?.addEventListener("abort", () => controller.abort());
      store = connectStore(model, controller.signal);
      return () => controller.abort();
    },
    render({ model, el, signal }) {
      const controller = new AbortController();
      signal?.addEventListener("abort", () => controller.abort());
      const room = new ControlRoom({ model, el }, store, controller.signal);
      return () => {
        controller.abort();
        room.root.remove();
      };
    },
  };
}
