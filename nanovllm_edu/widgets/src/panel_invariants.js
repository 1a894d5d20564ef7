// The ledger's law, article by article, as Python judged it at the end of each step.
import { h, panelFrame, setAttr, setText } from "./dom.js";
import { seqName } from "./names.js";
import { blockTag, seqTag } from "./parts.js";
import { countUpTo } from "./store.js";

const ARTICLES = {
  pool: "Every block is either free or used, never both, and in the free queue once at most.",
  tables: "ref_count is the number of block tables that hold the block, and no table is longer than its request.",
  map: "Every entry of the map leads to a full block with that hash.",
  contents: "A registered block holds the tokens that its requests have there; one that still fills has one holder and no hash.",
};

/**
 * The verdict that counts at a frame. `at`: the frame of the step's end that was judged last (0: the start).
 * `open`: a step is under way; `since`: something happened between two steps. `broken`: [[article, sentence]].
 */
export function verdictAt(store, state, frame) {
  const ends = store.stepEnds;
  const at = ends[countUpTo(ends, frame) - 1] ?? 0;
  return { at, step: at ? store.rows[at - 1].step : 0, broken: store.verdicts.get(at) ?? [], open: state.in_step, since: frame - at };
}

/** A sentence of the law as nodes: blocks and requests in it light up with the shared selection. */
function lawNodes(sentence) {
  return sentence.split(/(\bblock -?\d+|\brequest \d+)/).map((piece) => {
    const [, noun, id] = piece.match(/^(block|request) (\d+)$/) ?? [];
    if (noun === "block") return h("span", {}, "block ", blockTag(Number(id)));
    return noun ? h("span", { title: `request ${id}`, "aria-label": `request ${seqName(id)}` }, "request ", seqTag(Number(id))) : piece;
  });
}

export function createInvariants(view) {
  const { node } = panelFrame("invariants", "The law", "judged where no operation is open");
  const when = h("p", { class: "nve-note", "data-verdict": "" });
  const points = Object.entries(ARTICLES).map(([name, text]) => {
    const mark = h("b", { class: "nve-point-mark", "aria-hidden": "true" });
    const state = h("span", { class: "nve-spoken" });
    const list = h("div", { class: "nve-breaches" });
    const item = h("li", { class: "nve-point", "data-article": name }, mark, h("div", {}, state, text, list));
    return { name, item, mark, state, list, sign: "" };
  });
  const now = h("div", { class: "nve-breaches", "data-article": "now" });
  node.append(when, h("ul", { class: "nve-points" }, ...points.map((point) => point.item)), now);
  const fill = (list, sentences) => list.replaceChildren(...sentences.map((sentence) => h("p", { class: "nve-breach" }, ...lawNodes(sentence))));
  return {
    node,
    update() {
      const verdict = verdictAt(view.store, view.state, view.frame);
      const { at, step, broken, open, since } = verdict;
      const last = at ? `At the end of step ${step} it ${broken.length ? "was broken" : "held"}.` : "Until now no step has ended.";
      setText(when, open ? `Step ${view.state.step} is under way; the law is judged when the operation is complete. ${last}`
        : since > 0 ? `The law is judged at the end of each step. ${last}`
          : at ? `Judged here, at the end of step ${step}: the law ${broken.length ? "is broken" : "holds"}.`
            : "The law is judged at the end of each step.");
      setAttr(when, "data-verdict", broken.length ? "broken" : at ? "holds" : "none");
      setAttr(node, "data-open", String(open || since > 0));
      for (const point of points) {
        const sentences = broken.filter(([article]) => article === point.name).map(([, sentence]) => sentence);
        setText(point.mark, sentences.length ? "✗" : at ? "✓" : "–");
        setText(point.state, sentences.length ? "Broken: " : at ? "Holds: " : "Not judged yet: ");
        setAttr(point.item, "data-broken", sentences.length > 0 ? String(sentences.length) : false);
        if (point.sign === sentences.join("\n")) continue;
        point.sign = sentences.join("\n");
        fill(point.list, sentences);
      }
      // The engine's own objects may be broken by what no event tells, such as a learner's hand in a cell.
      const known = new Set(broken.map(([, sentence]) => sentence));
      const unseen = view.live && view.frame === view.end ? (view.status.violations ?? []).filter((sentence) => !known.has(sentence)) : [];
      now.hidden = !unseen.length;
      if (unseen.length) {
        fill(now, unseen);
        now.prepend(h("p", { text: "In the engine’s own objects, now:" }));
      }
    },
  };
}
