// The free queue: a conveyor. Blocks leave at the head, come back at the tail, and a hit is lifted out of the middle.
import { faceAndWords, h, keepTabStop, panelFrame, roving, setAttr, slide, syncList } from "./dom.js";
import { isMapped } from "./ledger.js";
import { count, previewTokens, shortHash } from "./names.js";
import { blockTag, hashTag, seqTag, swatch } from "./parts.js";

/** The queue's items, with a gap where the current event just lifted a block out or took it from the head. */
export function queueItems(state, event) {
  const items = state.queue.map((id) => ({ id, hash: state.blocks[id].hash, cached: isMapped(state, id) }));
  const gap = { gap: true, id: event?.block_id, head: event?.kind === "BlockTaken" };
  if (event?.kind === "BlockTaken") items.unshift(gap);
  if (event?.kind === "BlockRevived") {
    items.splice(event.queue_prev === null ? 0 : state.queue.indexOf(event.queue_prev) + 1, 0, gap);
  }
  return items;
}

function drawItem(view, node, item) {
  const { id } = item;
  setAttr(node, "data-nve-block", id);
  if (item.gap) {
    node.className = "nve-q nve-gap";
    const label = item.head ? `#${id} left at the head` : `#${id} was lifted out here`;
    setAttr(node, "title", label);
    return node.replaceChildren(h("b", { text: `#${id}` }), h("small", { text: item.head ? "taken" : "lifted" }));
  }
  const event = view.row?.e;
  const burning = event?.kind === "EntryEvicted" && event.block_id === id;
  node.className = `nve-q ${item.cached ? "nve-cached" : "nve-free"}${view.refs.blocks.has(id) ? " nve-now" : ""}${burning ? " nve-burning" : ""}`;
  const text = item.cached ? previewTokens(view.store.vocab, view.state.blocks[id].token_ids, 120) : "";
  const label = item.cached ? `block #${id}, still cached: hash ${item.hash}, “${text}”`
    : `block #${id}, ${item.hash ? "its entry is gone from the map" : "empty"}`;
  setAttr(node, "title", label);
  node.replaceChildren(...faceAndWords(label, h("b", { text: `#${id}` }),
    item.cached ? swatch(item.hash) : "",
    h(item.hash && !item.cached ? "s" : "small", { text: item.hash ? shortHash(item.hash) : "–" })));
}

function queueNote(view) {
  const { state, row } = view;
  const event = row?.e;
  const nodes = [];
  if (event?.kind === "BlockRevived") {
    const between = event.queue_prev === null ? [" at the head"]
      : event.queue_next === null ? [" at the tail"] : [" between ", blockTag(event.queue_prev), " and ", blockTag(event.queue_next)];
    nodes.push(blockTag(event.block_id), " was lifted out", ...between, " for ", seqTag(event.seq_id), ". ");
  } else if (event?.kind === "BlockTaken") {
    nodes.push(blockTag(event.block_id), " left at the head for ", seqTag(event.seq_id), ". ");
  } else if (event?.kind === "EntryEvicted") {
    nodes.push(blockTag(event.block_id), "’s entry ", hashTag(event.hash), " left the map: its tokens can’t be found any more. ");
  } else if (event?.kind === "BlockReturned") nodes.push(blockTag(event.block_id), " came back at the tail. ");
  const [head] = state.queue;
  if (head === undefined) return [...nodes, "The queue is empty: whoever needs a block now waits, or the newest running request is preempted."];
  nodes.push("Next to be taken: ", blockTag(head));
  if (isMapped(state, head)) nodes.push("; the cached entry ", hashTag(state.blocks[head].hash), " dies with it.");
  else nodes.push("; no cached entry dies with it.");
  return nodes;
}

export function createQueue(view) {
  const { node, heading } = panelFrame("queue", "Free queue", "out at the head, back at the tail");
  const total = h("span", { class: "nve-count" });
  heading.append(total);
  const list = h("div", { class: "nve-queue" });
  const note = h("p", { class: "nve-note" });
  node.append(h("div", { class: "nve-conveyor" }, h("span", { class: "nve-end", text: "head" }), list,
    h("span", { class: "nve-end", text: "tail" })), note);
  roving(list, ".nve-q:not(.nve-gap)");
  return {
    node,
    update() {
      const items = queueItems(view.state, view.row?.e);
      const event = view.row?.e;
      setAttr(list, "data-tier", items.length > 256 ? "small" : items.length > 64 ? "medium" : "large");
      const any = view.state.queue.length > 0;   // an empty listbox would be announced as broken
      setAttr(list, "role", any ? "listbox" : false);
      setAttr(list, "aria-label", any ? "Free blocks from head to tail; arrow keys move" : false);
      total.textContent = `${view.state.queue.length} of ${view.state.num_blocks}`;
      const change = () => syncList(list, items, {
        key: (item) => (item.gap ? "gap" : item.id),
        create: (item) => (item.gap ? h("span", { role: "presentation", "aria-hidden": "true" })
          : h("span", { role: "option", "aria-selected": "false", tabindex: "-1", "data-queue-id": item.id })),
        update: (tile, item) => drawItem(view, tile, item),
        sign: (item) => `${item.id}${item.hash}${item.cached}${item.head}${view.refs.blocks.has(item.id) ? event.kind : ""}`,
      });
      if (Math.abs(view.moved) === 1 && items.length <= 64) slide(list, change);
      else change();
      keepTabStop(list, ".nve-q:not(.nve-gap)");
      note.replaceChildren(...queueNote(view));
    },
  };
}
