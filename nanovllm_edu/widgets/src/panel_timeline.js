// The timeline: one column a step, one lane a request, the free-block curve below; a column leads to its step's end.
import { faceAndWords, h, panelFrame, setAttr, setText, svg, syncList } from "./dom.js";
import { count, hueClass, seqName } from "./names.js";

const COLUMN = 44;      // px a step
const CURVE = 30;       // px for the free-block curve
const FOOT = 18;        // px for the step's number
const FEW = 12;         // lanes up to here are high; more are low
const ALL_LANES = 24;   // requests up to here keep their lane for ever; of more only those alive in view have one
const SPARE = 6;        // columns drawn on either side of what can be seen

/** Which columns can be seen: [first, stop) of `total`, with some to spare. */
export function columnsInView(scrollLeft, width, total, spare = SPARE) {
  const first = Math.max(0, Math.floor(scrollLeft / COLUMN) - spare);
  return [Math.min(first, total), Math.min(total, Math.ceil((scrollLeft + width) / COLUMN) + spare)];
}

/** The requests that have a lane, by id: all of a few, else those alive in the steps from `first` to `stop`. */
export function lanesOf(lives, first, stop) {
  const all = [...lives.keys()].sort((a, b) => a - b);
  if (all.length <= ALL_LANES) return all;
  return all.filter((id) => lives.get(id).first < stop && lives.get(id).last >= first);
}

/** Where a prefill's bars stand in a column of `width` px: {hit: px, chunk: px}, `most` tokens filling all of it. */
export function chunkWidths(did, most, width) {
  const unit = width / Math.max(1, most);
  const hit = did.hit ? Math.max(7, did.hit * unit) : 0;
  const chunk = did.tokens ? Math.max(5, did.tokens * unit) : 0;
  const shrink = Math.min(1, width / Math.max(1, hit + chunk));
  return { hit: hit * shrink, chunk: chunk * shrink };
}

/** What a step did, in words. */
export function stepWords(step) {
  const parts = [];
  for (const [id, did] of [...step.seqs].sort(([a], [b]) => a - b)) {
    const what = [];
    if (did.preempted) what.push("preempted");
    if (did.tokens) what.push(did.prefill ? `prefill of ${count(did.tokens, "token")}${did.hit ? ` after ${did.hit} found in the cache` : ""}` : "decode");
    if (did.finished) what.push(did.finished === "aborted" ? "aborted" : `finished (${did.finished})`);
    if (what.length) parts.push(`${seqName(id)} ${what.join(", ")}`);
  }
  const state = step.failed ? "failed" : step.done ? step.phase : "under way";
  return `step ${step.step}${state ? `, ${state}` : ""}: ${parts.join("; ") || "nothing"}; ${count(step.free, "block")} free`;
}

/** The marks of one request in one step. */
function laneMarks(id, did, x, most) {
  const { y, height } = x;
  const middle = y + height / 2;
  const bar = height - 8;
  const nodes = [];
  const mark = (tag, kind, attributes) => nodes.push(svg(tag, { "data-mark": kind, ...attributes }));
  if (did.tokens && did.prefill) {
    const { hit, chunk } = chunkWidths(did, most, COLUMN - 6);
    if (hit) mark("rect", "hit", { class: "nve-tl-hit", x: 3, y: y + 4, width: hit, height: bar, rx: 3 });
    mark("rect", "prefill", { class: "nve-tl-chunk", x: 3 + hit, y: y + 4, width: chunk, height: bar, rx: 3, "data-tokens": did.tokens });
    const text = `+${did.tokens}`;
    const wide = 6.2 * text.length;
    const fits = Math.min(3 + hit + Math.max(3, (chunk - wide) / 2), COLUMN - 2 - wide);
    nodes.push(svg("text", { x: fits, y: middle + 3.5, class: "nve-tl-text", text }));
  } else if (did.tokens) mark("circle", "decode", { class: "nve-tl-decode", cx: COLUMN / 2, cy: middle, r: Math.min(4.5, height / 3) });
  if (did.preempted) mark("path", "preempted", { class: "nve-tl-flag", d: `M${COLUMN - 13} ${y + height - 3}V${y + 3}h9l-2.5 3 2.5 3h-9` });
  if (did.finished) mark("path", did.finished === "aborted" ? "aborted" : "finished", {
    class: "nve-tl-end", d: did.finished === "aborted"
      ? `M${COLUMN - 10} ${middle - 3.5}l7 7m0 -7l-7 7` : `M${COLUMN - 3} ${middle - 6}v12M${COLUMN - 12} ${middle}l3 3 5 -6`,
  });
  return svg("g", { class: hueClass(id), "data-nve-seq": id }, ...nodes);
}

export function createTimeline(view) {
  const { node, heading } = panelFrame("timeline", "Timeline", "one column a step; click to go there");
  heading.append(timelineLegend());
  const names = h("div", { class: "nve-tl-names", "aria-hidden": "true" });
  const columns = h("div", { class: "nve-tl-columns" });
  const sheet = h("div", { class: "nve-tl-sheet" }, columns);
  const scroller = h("div", { class: "nve-tl-scroll" }, sheet);
  const frame = h("div", { class: "nve-tl" }, names, scroller);
  const empty = h("p", { class: "nve-hint", text: "No step has begun yet." });
  node.append(frame, empty);
  let current = null;      // the step that the view stands in
  let active = null;       // the step that the keyboard stands at, or null
  let drawing = 0;

  const go = (index) => { view.stop(); view.goto(view.store.steps[index].end); };
  const indexOf = (event) => {
    const column = event.target.closest?.(".nve-tl-column");
    return column ? Number(column.dataset.index) : -1;
  };
  const show = (index) => {
    const left = index * COLUMN;
    const width = scroller.clientWidth;
    if (left < scroller.scrollLeft) scroller.scrollLeft = Math.max(0, left - COLUMN);
    else if (left + COLUMN > scroller.scrollLeft + width) scroller.scrollLeft = left + 2 * COLUMN - width;
  };
  columns.addEventListener("click", (event) => { if (indexOf(event) >= 0) go(indexOf(event)); });
  columns.addEventListener("focusin", (event) => { if (indexOf(event) >= 0) active = indexOf(event); });
  columns.addEventListener("focusout", () => { active = null; });
  columns.addEventListener("keydown", (event) => {
    const index = indexOf(event);
    if (index < 0 || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const last = view.store.steps.length - 1;
    const target = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: last, Enter: index, " ": index, ArrowUp: index, ArrowDown: index }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter" || event.key === " ") return go(index);
    const to = Math.max(0, Math.min(last, target));
    show(to);
    active = to;
    draw();
    columns.querySelector(`[data-index="${to}"]`)?.focus({ preventScroll: true });
  });
  scroller.addEventListener("scroll", () => {
    if (drawing || view.signal.aborted) return;
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      draw();
      view.selection.light();
    });
  });
  view.signal.addEventListener("abort", () => cancelAnimationFrame(drawing));

  function draw() {
    const { store } = view;
    const { steps } = store;
    const here = store.stepIndex(view.frame);
    const [first, stop] = columnsInView(scroller.scrollLeft, scroller.clientWidth, steps.length);
    const lanes = lanesOf(store.lives, ...columnsInView(scroller.scrollLeft, scroller.clientWidth, steps.length, 0));
    const height = lanes.length <= FEW ? 24 : 16;
    const total = lanes.length * height + CURVE + FOOT;
    sheet.style.width = `${steps.length * COLUMN}px`;
    sheet.style.height = `${total}px`;
    syncList(names, [...lanes.map((id) => ({ id })), { id: "free" }], {
      key: ({ id }) => id, create: ({ id }) => (id === "free" ? h("small", { text: "free" })
        : h("b", { class: `nve-seq ${hueClass(id)}`, "data-nve-seq": id, text: seqName(id) })),
      update: (label, { id }) => { label.style.height = `${id === "free" ? CURVE : height}px`; }, sign: () => height,
    });
    const items = [];
    for (let index = first; index < stop; index++) items.push({ index, step: steps[index] });
    if (active !== null && (active < first || active >= stop) && steps[active]) items.push({ index: active, step: steps[active] });
    const any = items.length > 0;
    setAttr(columns, "role", any ? "listbox" : false);
    setAttr(columns, "aria-label", any ? "Steps; arrow keys move, Enter goes to the end of a step" : false);
    const stopAt = active ?? Math.max(first, Math.min(stop - 1, Math.max(0, here)));
    const { num_blocks: blocks } = view.state;
    const lanesSign = lanes.join();
    syncList(columns, items, {
      key: ({ index }) => index,
      create: ({ index }) => h("div", { role: "option", class: "nve-tl-column", "data-index": index }),
      update: (column, item) => drawColumn(column, item, { lanes, height, total, blocks, store, here }),
      sign: ({ index, step }) => {
        const alive = lanes.map((id) => (isAlive(store.lives.get(id), index) ? 1 : 0)).join("");
        return [step.end, step.done, step.free, steps[index + 1]?.free, store.mostTokens, height, blocks, lanesSign, alive, index === here, index > here,
          [...step.seqs.values()].filter((did) => did.finished).length].join();
      },
    });
    for (const column of columns.children) {
      const index = Number(column.dataset.index);
      setAttr(column, "tabindex", index === stopAt ? "0" : "-1");
      setAttr(column, "aria-selected", String(index === here));
    }
  }

  return {
    node,
    update() {
      const { steps } = view.store;
      empty.hidden = steps.length > 0;
      frame.hidden = !steps.length;
      setAttr(node, "data-steps", steps.length);
      const here = view.store.stepIndex(view.frame);
      draw();
      if (here !== current && steps.length) {
        current = here;
        const before = scroller.scrollLeft;
        if (active === null) show(Math.max(0, here));
        if (scroller.scrollLeft !== before) draw();
      }
    },
  };
}

const isAlive = (life, index) => life.first <= index && index <= life.last;

function drawColumn(column, { index, step }, { lanes, height, total, blocks, store, here }) {
  column.style.left = `${index * COLUMN}px`;
  column.style.height = `${total}px`;
  column.className = `nve-tl-column${index === here ? " nve-tl-here" : ""}${index > here ? " nve-tl-later" : ""}${step.failed ? " nve-tl-failed" : ""}`;
  setAttr(column, "data-timeline-step", step.step);
  setAttr(column, "data-goto", step.end);
  const words = stepWords(step);
  setAttr(column, "title", words);
  const nodes = [];
  lanes.forEach((id, lane) => {
    const y = lane * height;
    const did = step.seqs.get(id);
    if (isAlive(store.lives.get(id), index)) {
      nodes.push(svg("line", { x1: 0, x2: COLUMN, y1: y + height / 2, y2: y + height / 2, class: did?.tokens ? "nve-tl-lane" : "nve-tl-lane nve-tl-waits" }));
    }
    if (did) nodes.push(laneMarks(id, did, { y, height }, store.mostTokens));
  });
  // The curve is flat within a step and slopes to its neighbours half-way between the numbers.
  const level = (free) => lanes.length * height + 4 + (1 - free / Math.max(1, blocks)) * (CURVE - 8);
  const before = store.steps[index - 1]?.free ?? step.free;
  const after = store.steps[index + 1]?.free ?? step.free;
  const d = `M0 ${level((before + step.free) / 2)}L${COLUMN / 2} ${level(step.free)}L${COLUMN} ${level((step.free + after) / 2)}`;
  nodes.push(svg("path", { class: "nve-tl-area", d: `${d}V${level(0)}H0Z` }), svg("path", { class: "nve-tl-curve", d, "data-free": step.free }));
  nodes.push(svg("text", { x: COLUMN / 2, y: total - 5, class: "nve-tl-step", text: `${step.failed ? "✗ " : ""}${step.step}` }));
  column.replaceChildren(...faceAndWords(words, svg("svg", { width: COLUMN, height: total, focusable: "false" }, ...nodes)));
}

function timelineLegend() {
  const key = (className, d, text) => h("span", {}, svg("svg", { width: 14, height: 12, class: "nve-tl-key" }, svg("path", { class: className, d })), text);
  return h("span", { class: "nve-legend", "aria-hidden": "true" }, key("nve-tl-chunk", "M1 2h12v8H1z", "prefill"),
    key("nve-tl-hit", "M1 2h12v8H1z", "found in the cache"), key("nve-tl-decode", "M7 2.5a3.5 3.5 0 1 0 .01 0z", "decode"),
    key("nve-tl-flag", "M3 11V1h9l-2.5 3 2.5 3H3", "preempted"), key("nve-tl-end", "M12 0v12M3 6l3 3 5 -6", "finished"));
}
