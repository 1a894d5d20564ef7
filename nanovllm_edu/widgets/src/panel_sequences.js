// Requests by status: WAITING → RUNNING → FINISHED, with why each stands where it stands.
import { h, panelFrame, setAttr, setText, syncList } from "./dom.js";
import { seqIds } from "./ledger.js";
import { count, hueClass, seqName } from "./names.js";
import { finishReason } from "./story.js";

const FINISHED_CARDS = 12;

/** The three lanes: waiting and running in queue order (head first), finished newest first. */
export function lanes(state) {
  const finished = seqIds(state).filter((id) => state.seqs[id].status === "FINISHED").reverse();
  return { WAITING: state.waiting, RUNNING: state.running, FINISHED: finished };
}

function reason(state, event, id, lane, place) {
  const seq = state.seqs[id];
  if (event?.seq_id === id) {
    if (event.kind === "RequestPreempted") return event.for_seq_id === id ? "gave way itself" : `preempted for ${seqName(event.for_seq_id)}`;
    if (event.kind === "AllocationDenied") return `needs ${event.num_needed_blocks} free blocks, ${event.num_free_blocks} left`;
    if (event.kind === "RequestAdded") return "just arrived";
    if (event.kind === "RequestScheduled") return event.admitted ? "admitted to this step" : "in this step's batch";
  }
  if (lane === "FINISHED") return finishReason(seq);
  if (lane === "WAITING" && seq.block_table.length) return "its prefill is under way";
  if (lane === "WAITING") return place === 0 ? "next to be admitted" : "nobody skips the head";
  return place === state.running.length - 1 && place > 0 ? "newest: preempted first" : "";
}

function drawCard(view, node, { id, lane, place, event }) {
  const seq = view.state.seqs[id];
  const generated = seq.token_ids.length - seq.num_prompt_tokens;
  const why = reason(view.state, event, id, lane, place);
  node.className = `nve-card ${hueClass(id)}${view.refs.seqs.has(id) ? " nve-now" : ""}${lane === "FINISHED" ? " nve-done" : ""}`;
  setAttr(node, "data-nve-seq", id);
  const share = (n) => `${(100 * n) / Math.max(1, seq.token_ids.length)}%`;
  const bar = lane === "FINISHED" ? "" : h("span", { class: "nve-fillbar", title: `${count(seq.num_cached_tokens, "token")} with KV written, ${seq.num_scheduled_tokens} being computed` },
    h("i", { class: "nve-c-w", style: `width:${share(seq.num_cached_tokens)}` }), h("i", { class: "nve-c-c", style: `width:${share(seq.num_scheduled_tokens)}` }));
  const abort = lane !== "FINISHED" && view.live ? h("button", {
    class: "nve-abort", type: "button", "data-action": "abort-one", title: `Abort ${seqName(id)}`, "aria-label": `Abort request ${seqName(id)}`, text: "✕",
    on: { click: () => view.command({ action: "abort", seq_id: id }) },
  }) : "";
  node.replaceChildren(
    h("span", { class: "nve-line" }, h("b", { class: "nve-name", text: seqName(id) }),
      h("span", { text: `${seq.num_prompt_tokens} + ${generated}` }), h("small", { text: "tokens" }),
      seq.num_scheduled_tokens ? h("span", { class: "nve-tag", text: `+${seq.num_scheduled_tokens} now` }) : "",
      seq.num_preemptions ? h("span", { class: "nve-tag nve-bad", text: `preempted ×${seq.num_preemptions}` }) : "", abort),
    bar, why ? h("small", { class: "nve-why", text: why }) : "");
}

export function createSequences(view) {
  const { node } = panelFrame("sequences", "Requests", "prompt + generated tokens; head of each queue on top");
  const columns = {};
  const grid = h("div", { class: "nve-lanes" });
  for (const lane of ["WAITING", "RUNNING", "FINISHED"]) {
    const list = h("div", { class: "nve-lane-list" });
    const title = h("h4", { text: lane });
    columns[lane] = { list, title, more: h("small", { class: "nve-hint" }) };
    grid.append(h("div", { class: `nve-lane nve-lane-${lane.toLowerCase()}` }, title, list, columns[lane].more));
  }
  node.append(grid);
  return {
    node,
    update() {
      const event = view.row?.e;
      for (const [lane, ids] of Object.entries(lanes(view.state))) {
        const { list, title, more } = columns[lane];
        const shown = lane === "FINISHED" ? ids.slice(0, FINISHED_CARDS) : ids;
        setText(title, `${lane} ${ids.length}`);
        setText(more, ids.length > shown.length ? `and ${ids.length - shown.length} earlier` : ids.length ? "" : "–");
        syncList(list, shown.map((id, place) => ({ id, lane, place, event })), {
          key: (item) => item.id, create: () => h("div"), update: (card, item) => drawCard(view, card, item),
          sign: ({ id, place }) => {
            const seq = view.state.seqs[id];
            const named = view.refs.seqs.has(id);
            return [place, ids.length, seq.token_ids.length, seq.num_cached_tokens, seq.num_scheduled_tokens, seq.num_preemptions,
              seq.finish_reason, seq.block_table.length > 0, named && view.frame, view.live].join();
          },
        });
      }
    },
  };
}
