// What the panels tell, read off the state at a frame and the rows that led there.
import { countUpTo } from "./store.js";
import { isMapped, seqIds } from "./ledger.js";

/** The ids that an event speaks of; the view outlines them. */
export function eventRefs(row) {
  const refs = { blocks: new Set(), seqs: new Set() };
  if (!row) return refs;
  const e = row.e;
  for (const key of ["block_id", "block_id_after"]) if (Number.isInteger(e[key])) refs.blocks.add(e[key]);
  for (const key of ["seq_id", "for_seq_id"]) if (Number.isInteger(e[key])) refs.seqs.add(e[key]);
  for (const id of e.seq_ids ?? []) refs.seqs.add(id);
  return refs;
}

/**
 * The newest walk along a prompt's blocks through the prefix cache at or before a frame, or null.
 * `end` says why it stopped: "" while it goes on, else the outcome of its last lookup.
 */
export function lookupWalk(store, frame) {
  const upTo = countUpTo(store.lookups, frame);
  if (!upTo) return null;
  const lookups = [];
  const last = store.lookups[upTo - 1];
  const { seq_id: seq } = store.rows[last - 1].e;
  for (let i = upTo - 1, expected = Infinity; i >= 0; i--) {
    const e = store.rows[store.lookups[i] - 1].e;
    // One walk counts up from 0 with no other event in between.
    if (e.seq_id !== seq || e.logical >= expected) break;
    if (lookups.length && store.lookups[i] !== store.lookups[i + 1] - 1) break;
    lookups.unshift(e);
    expected = e.logical;
  }
  const outcome = lookups[lookups.length - 1].outcome;
  const next = frame > last ? store.rows[last].e : null;
  return {
    seq, frame: last, step: store.rows[last - 1].step, lookups,
    end: outcome.startsWith("hit") ? "" : outcome,
    denied: next?.kind === "AllocationDenied" && next.seq_id === seq ? next : null,
    current: frame === last || (frame === last + 1 && next?.kind === "AllocationDenied"),
  };
}

/** How each entry of a request's table came to it: logical → "BlockTaken" | "BlockShared" | "BlockRevived". */
export function acquisitions(store, seqId, tableLength, frame) {
  const kinds = new Map();
  const list = store.acquired.get(seqId) ?? [];
  for (let i = countUpTo(list.map((a) => a.frame), frame) - 1; i >= 0 && kinds.size < tableLength; i--) {
    if (list[i].logical < tableLength && !kinds.has(list[i].logical)) kinds.set(list[i].logical, list[i].kind);
  }
  return kinds;
}

/** When and what a request last gave back, or null. */
export function lastCleared(store, seqId, frame) {
  return (store.cleared.get(seqId) ?? []).findLast((c) => c.frame <= frame) ?? null;
}

const FINISH_REASONS = {
  eos: "end-of-sequence token", stop: "stop condition", length: "token limit", aborted: "aborted",
  kv_exhausted: "outgrew the pool",
};

/** Why a request ended, in words. */
export function finishReason(seq) {
  return FINISH_REASONS[seq.finish_reason] ?? seq.finish_reason;
}

/** The figures in the header, at the cursor's frame. */
export function kpis(state, store, frame) {
  return {
    step: state.step, running: state.running.length, waiting: state.waiting.length,
    free: state.queue.length, blocks: state.num_blocks,
    hits: countUpTo(store.hits, frame), queries: countUpTo(store.queries, frame),
  };
}

function addNode(nodes, key, values) {
  if (!nodes.has(key)) nodes.set(key, { key, blocks: [], copies: [], seqs: [], children: [], ...values });
  return nodes.get(key);
}

/**
 * The hash chains as a forest: one node a hash, so that requests which share a prefix share its nodes until they fork.
 * Below them, for each request, one node for its blocks that have no hash yet, and for a lookup its misses.
 */
export function chainNodes(state, store, walk) {
  const nodes = new Map();
  const link = (hash) => store.links.get(hash) ?? { parent: "?", tokens: [], seen: 0 };
  const block = (hash) => addNode(nodes, hash, { kind: "block", hash, ...link(hash) });
  state.blocks.forEach((b, id) => {
    if (!b.hash || !(isMapped(state, id) || b.ref_count > 0)) return;
    const node = block(b.hash);
    node.tokens = b.token_ids;
    (isMapped(state, id) ? node.blocks : node.copies).push(id);
  });
  for (const id of seqIds(state)) {
    const seq = state.seqs[id];
    let parent = "";
    for (let logical = 0; logical < seq.block_table.length; logical++) {
      const { hash } = state.blocks[seq.block_table[logical]];
      if (!hash) {
        addNode(nodes, `tail ${id}`, {
          kind: "tail", hash: "", parent, seqs: [id], logical, blocks: seq.block_table.slice(logical), seen: Infinity,
          tokens: seq.token_ids.slice(logical * state.block_size, (logical + 1) * state.block_size),
        });
        break;
      }
      block(hash).seqs.push(id);
      parent = hash;
    }
  }
  if (walk?.current) {
    for (const lookup of walk.lookups) {
      if (lookup.outcome.startsWith("hit")) continue;
      addNode(nodes, `lookup ${lookup.logical}`, {
        kind: lookup.outcome, hash: lookup.hash, parent: lookup.parent_hash, seqs: [walk.seq], logical: lookup.logical,
        tokens: lookup.token_ids, seen: Infinity,
      });
    }
  }
  for (const node of [...nodes.values()]) {   // ancestors that left the map: a gap in the chain, not a new root
    for (let parent = node.parent; parent && parent !== "?" && !nodes.has(parent);) {
      parent = addNode(nodes, parent, { kind: "gone", hash: parent, ...link(parent) }).parent;
    }
  }
  return nodes;
}

/**
 * Lay the forest out in rows, parents above children, as a file tree does: a chain goes straight down, a fork indents.
 * Each row is {node, lane, joins: true if its parent is right above in its lane, fork: true if it hangs on a fork}.
 */
export function chainRows(nodes, limit = 200) {
  const roots = [];
  for (const node of nodes.values()) node.children = [];
  for (const node of nodes.values()) {
    const parent = nodes.get(node.parent);
    if (parent && parent !== node) parent.children.push(node);
    else roots.push(node);
  }
  const order = (a, b) => a.seen - b.seen || (a.key < b.key ? -1 : 1);
  const rows = [];
  const stack = roots.sort(order).reverse().map((node) => ({ node, lane: roots.length > 1 ? 1 : 0, parent: null }));
  while (stack.length) {   // no recursion: a chain may be thousands of blocks deep
    const { node, lane, parent } = stack.pop();
    const fork = parent ? parent.node.children.length > 1 : roots.length > 1;
    const row = { node, lane, parent, fork, index: rows.length };
    rows.push(row);
    const children = node.children.sort(order);
    const inner = lane + (children.length > 1 ? 1 : 0);
    for (let i = children.length - 1; i >= 0; i--) stack.push({ node: children[i], lane: inner, parent: row });
  }
  if (rows.length <= limit) return { rows, hidden: 0 };
  return { rows: rows.slice(0, limit), hidden: rows.length - limit };
}
