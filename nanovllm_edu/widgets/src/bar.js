// Header, controls and the sentence: where we are in time, how to move, what just happened.
import { h, setAttr, setText, svg } from "./dom.js";
import { seqName } from "./names.js";
import { sentenceNodes, sentenceText } from "./parts.js";
import { poolHint } from "./panel_pool.js";
import { kpis } from "./story.js";

const ICONS = {
  "step-back": "M4 4h2v12H4zM16 4v12L7 10z", "event-back": "M14 4v12L5 10z", play: "M5 3l12 7-12 7z", stop: "M5 4h4v12H5zM11 4h4v12h-4z",
  "event-forward": "M6 4l9 6-9 6z", "step-forward": "M4 4l9 6-9 6zM14 4h2v12h-2z",
};

function icon(name) {
  return svg("svg", { viewBox: "0 0 20 20", class: "nve-icon", "aria-hidden": "true", focusable: "false" }, svg("path", { d: ICONS[name] }));
}

export function createHeader(view) {
  const kpi = (label, title) => {
    const value = h("strong", { text: "–" });
    return { value, node: h("div", { title }, value, h("span", { text: label })) };
  };
  const figures = {
    step: kpi("step", "Steps of the engine up to this frame"), load: kpi("running + waiting", "Requests in the two queues"),
    free: kpi("free blocks", "Blocks in the free queue, cached ones included"), hits: kpi("lookups hit", "Prefix lookups that found their block, of all that asked the map"),
    speed: kpi("tokens/s", "Tokens the engine generates a second, now"),
  };
  const title = h("h2", { class: "nve-title" });
  const what = h("span", { class: "nve-what" });
  const law = h("span", { class: "nve-law", role: "status" });
  const node = h("header", { class: "nve-top" }, h("div", { class: "nve-titles" }, title, what),
    h("div", { class: "nve-kpis" }, ...Object.values(figures).map((f) => f.node)), law);
  return {
    node,
    update() {
      const k = kpis(view.state, view.store, view.frame);
      setText(title, view.meta.title || "Control room");
      setText(what, [view.meta.model, poolHint(view.state)].filter(Boolean).join(" · "));
      setText(figures.step.value, String(k.step));
      setText(figures.load.value, `${k.running} + ${k.waiting}`);
      setText(figures.free.value, `${k.free} / ${k.blocks}`);
      setText(figures.hits.value, `${k.hits} of ${k.queries}`);
      const speed = view.status.tokens_per_second;
      figures.speed.node.hidden = !view.live;
      setText(figures.speed.value, speed ? (speed < 10 ? speed.toFixed(1) : String(Math.round(speed))) : "–");
      const broken = view.status.violations ?? [];
      law.hidden = !view.live && view.status.violations === undefined;
      setAttr(law, "class", `nve-law${broken.length ? " nve-broken" : ""}`);
      setText(law, broken.length ? `✗ the law is broken (${broken.length})` : "✓ the law holds");
      setAttr(law, "title", broken.join("\n") || "free and used partition the pool, ref_count = tables that hold a block, every map entry leads to its hash");
    },
  };
}

const MARKS = { preemption: "a preemption", hit: "a prefix hit", eviction: "an evicted cache entry" };

/** Marks for the scrub bar, at most one a kind and bucket: [{kind, share}] with share of the way in 0..1. */
export function scrubMarks(marks, total, buckets = 200) {
  const result = [];
  for (const kind of Object.keys(MARKS)) {
    let last = -1;
    for (const frame of marks[kind]) {
      const bucket = Math.floor((frame / Math.max(1, total)) * buckets);
      if (bucket !== last) result.push({ kind, share: frame / Math.max(1, total) });
      last = bucket;
    }
  }
  return result;
}

export function createBar(view) {
  const button = (action, label, title, handler, extra = {}) => h("button", {
    type: "button", class: "nve-button", "data-action": action, title, "aria-label": label ? false : title, on: { click: handler }, ...extra,
  }, ICONS[action] ? icon(action) : "", label);
  const playText = h("span", { text: "Play" });
  const nav = {
    "step-back": button("step-back", "", "Step back (Shift + ←)", () => view.stepBy(-1)),
    "event-back": button("event-back", "", "Event back (←)", () => view.eventBy(-1)),
    play: button("play", playText, "Play (space)", () => view.togglePlay(), { class: "nve-button nve-go" }),
    "event-forward": button("event-forward", "", "Event forward (→)", () => view.eventBy(1)),
    "step-forward": button("step-forward", "", "Step forward (Shift + →)", () => view.stepBy(1)),
  };
  const speed = h("select", { class: "nve-speed", "aria-label": "Speed of playback", title: "Events a second", "data-input": "speed" },
    ...[1, 2, 4, 8, 16, 60].map((n) => h("option", { value: n, text: `${n}/s`, selected: n === 4 })));
  speed.addEventListener("change", () => view.setSpeed(Number(speed.value)));
  const range = h("input", { type: "range", class: "nve-range", min: "0", step: "1", "data-input": "scrub", "aria-label": "Frame" });
  range.addEventListener("input", () => view.goto(Number(range.value)));
  const marks = h("div", { class: "nve-marks", "aria-hidden": "true" });
  const place = h("span", { class: "nve-place" });
  const present = h("button", { type: "button", class: "nve-button nve-present", "data-action": "present", on: { click: () => view.toPresent() } });
  const live = {
    step: button("step", "Step engine", "Run one step of the engine", () => view.command({ action: "step" })),
    run: button("run", "Run", "Run the engine until nothing is left to do", () => view.command({ action: "run" })),
    pause: button("pause", "Pause", "Pause the engine after the current step", () => view.command({ action: "pause" })),
    abort: button("abort", "Abort", "Abort all requests", () => view.command({ action: "abort" })),
    reset: button("reset", "Reset", "Abort all, forget the prefix cache, begin a new conversation", () => view.command({ action: "reset" })),
  };
  const node = h("div", { class: "nve-bar", role: "toolbar", "aria-label": "Time and engine" },
    h("div", { class: "nve-group" }, ...Object.values(nav), speed),
    h("div", { class: "nve-scrub" }, marks, range), place, present,
    view.live ? h("div", { class: "nve-group nve-engine" }, ...Object.values(live)) : "");
  let marked = "";
  return {
    node,
    update() {
      const { frame, end } = view;
      for (const name of ["step-back", "event-back"]) disable(nav[name], frame === 0);
      for (const name of ["event-forward", "step-forward"]) disable(nav[name], frame === end);
      disable(nav.play, end === 0);
      setText(playText, view.playing ? "Stop" : "Play");
      nav.play.querySelector("path").setAttribute("d", ICONS[view.playing ? "stop" : "play"]);
      setAttr(nav.play, "title", view.playing ? "Stop (space)" : frame === end && view.live ? "Play the newest step again (space)" : "Play (space)");
      setAttr(range, "max", end);
      if (Number(range.value) !== frame) range.value = String(frame);
      range.style.setProperty("--at", `${end ? (100 * frame) / end : 0}%`);
      setAttr(range, "aria-valuetext", `event ${frame} of ${end}, step ${view.state.step}`);
      setText(place, `event ${frame} / ${end}`);
      const newer = end - frame;
      present.hidden = !view.live || view.follow || newer === 0;
      setText(present, `${newer} newer event${newer === 1 ? "" : "s"} ⇥`);
      setAttr(present, "title", "Return to the present (End)");
      if (marked !== `${end}`) {
        marked = `${end}`;
        marks.replaceChildren(...scrubMarks(view.store.marks, end).map(({ kind, share }) =>
          h("i", { class: `nve-mark nve-mark-${kind}`, style: `left:${share * 100}%`, title: MARKS[kind] })));
      }
      const { state } = view.status;
      const idle = state === "paused";
      disable(live.step, !idle);
      disable(live.run, !idle);
      disable(live.pause, state !== "running" && state !== "busy");
      const newest = view.newestLive();
      disable(live.abort, state === "closed" || !newest);
      disable(live.reset, state === "closed");
      setAttr(live.run, "class", `nve-button${state === "running" ? " nve-on" : ""}`);
    },
  };
}

/** Disable a button without dropping the focus that stands on it, so that the keyboard does not lose its place. */
function disable(button, off) {
  if (button.disabled === off) return;
  if (off && button.ownerDocument.activeElement === button) {
    button.closest("[data-nve-view]")?.querySelector(".nve-say")?.focus({ preventScroll: true });
  }
  button.disabled = off;
}

/** "allocate(B)" out of the function that made the change and the request it was for. */
export function eventPlace(row) {
  if (!row) return "start";
  const name = row.e.at?.[1]?.split(".").pop() ?? row.e.kind;
  const { seq_id: seq, block_id: block } = row.e;
  const who = Number.isInteger(seq) ? seqName(seq) : Number.isInteger(block) ? `#${block}` : "";
  return `step ${row.step} · ${name}(${who})`;
}

export function createSentence(view) {
  const where = h("span", { class: "nve-where" });
  const text = h("span", { class: "nve-sentence" });
  const spoken = h("div", { class: "nve-spoken", "aria-live": "polite", "aria-atomic": "true" });
  const say = h("div", {
    class: "nve-say", tabindex: "0", role: "group",
    "aria-label": "What just happened. Arrow keys: event by event; with Shift: step by step; Home, End; space plays",
  }, where, text);
  const alert = h("div", { class: "nve-alert", role: "alert", hidden: true });
  const notice = h("div", { class: "nve-notice", role: "status", hidden: true });
  const node = h("div", { class: "nve-strips" }, say, alert, notice, spoken);
  let shown = null;
  let timer = 0;
  view.signal.addEventListener("abort", () => clearTimeout(timer));
  return {
    node,
    update() {
      const { row } = view;
      if (row !== shown || !row) {
        shown = row;
        const start = view.end ? "The start of the recording. Step or play to see what happened."
          : view.live ? "Nothing has happened yet. Submit a prompt, then step the engine." : "The recording is empty.";
        const parts = row ? row.s ?? [{ b: row.e.kind }] : [start];
        setText(where, eventPlace(row));
        text.replaceChildren(...sentenceNodes(parts));
        // A running engine makes 20 sentences a second; a screen reader gets the one that stays.
        clearTimeout(timer);
        timer = setTimeout(() => setText(spoken, `Event ${view.frame}. ${sentenceText(parts)}`), 350);
      }
      const errors = [view.localError, view.status.error, ...(view.status.violations ?? [])].filter(Boolean);
      alert.hidden = !errors.length;
      setText(alert, errors.join("\n"));
      const notes = [view.localNotice, view.status.notice,
        view.status.state === "closed" ? "The engine is closed. What was recorded can still be looked at." : ""].filter(Boolean);
      notice.hidden = !notes.length;
      setText(notice, notes.join("\n"));
    },
  };
}
