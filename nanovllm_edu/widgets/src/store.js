// The rows of one model, shared by all of its views, and what can be looked up in them without walking them all.

/** How often a thing happened up to each frame: ascending frame numbers, searched by bisection. */
export function countUpTo(frames, frame) {
  let low = 0;
  let high = frames.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (frames[middle] <= frame) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** How many blocks the free queue gains by one row's patches; or how many it holds then, if it is a new one. */
function queueGain(patches) {
  let gain = 0;
  for (const [op, path, , after] of patches) {
    if (path.length !== 1 || path[0] !== "queue") continue;
    if (op === "set") return { is: after.length };
    gain += op === "link" ? 1 : op === "unlink" ? -1 : 0;
  }
  return { gain };
}

/** An append-only record of rows. Row k-1 leads from frame k-1 to frame k. */
export class RowStore {
  constructor(initial) {
    this.listeners = new Set();
    this.reset(initial);
  }

  reset(initial) {
    this.generation = (this.generation ?? 0) + 1;
    this.initial = initial;
    this.rows = [];
    this.vocab = new Map();
    this.total = 0;
    this.stepEnds = [0];              // frames at which a step is over, and the start
    this.marks = { preemption: [], hit: [], eviction: [] };
    this.lookups = [];                // frames of prefix lookups
    this.queries = [];                // … of those that asked the map
    this.hits = [];
    this.links = new Map();           // hash → {parent, tokens, seen}
    this.acquired = new Map();        // seq → [{frame, kind, logical, block}]
    this.cleared = new Map();         // seq → [{frame, step, table}]
    this.pieces = new Map();          // seq → [{frame, text, length}, or {frame, keep}: the length a failed step went back to]
    this.verdicts = new Map();        // frame of a step's end → [[article, sentence]], where the law is broken
    this.steps = [];                  // [{step, begin, end, phase, done, failed, free, seqs: seq → what it did}]
    this.stepBegins = [];
    this.lives = new Map();           // seq → {first, last}: indices of the steps in which it was alive
    this.free = initial?.queue?.length ?? 0;
    this.mostTokens = 1;              // that one request had computed or found in one step
    for (const [id, seq] of Object.entries(initial?.seqs ?? {})) {
      if (seq.status !== "FINISHED") this.lives.set(Number(id), { first: 0, last: Infinity });
    }
    this.learnLinks(initial);
  }

  /** The start may hold requests already: each full block's parent is the block before it in the table. */
  learnLinks(state) {
    for (const seq of Object.values(state?.seqs ?? {})) {
      let parent = "";
      for (const id of seq.block_table) {
        const { hash, token_ids: tokens } = state.blocks[id];
        if (!hash) break;
        this.links.set(hash, { parent, tokens, seen: 0 });
        parent = hash;
      }
    }
  }

  /** Add rows from `start` on; those that are here already are passed over. False if rows in between are missing. */
  add(start, rows, vocab = {}, total = 0) {
    for (const [id, text] of Object.entries(vocab)) this.vocab.set(id, text);
    this.total = Math.max(this.total, total, start + rows.length);
    if (start > this.rows.length) return false;
    for (const row of rows.slice(this.rows.length - start)) {
      this.rows.push(row);
      this.index(row, this.rows.length);
    }
    return true;
  }

  index(row, frame) {
    const e = row.e;
    const append = (map, key, value) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
    if (row.last) this.stepEnds.push(frame);
    if (row.v) this.verdicts.set(frame, row.v);
    this.indexStep(row, frame);
    switch (e.kind) {
      case "RequestPreempted": this.marks.preemption.push(frame); break;
      case "PrefixReused": this.marks.hit.push(frame); break;
      case "EntryEvicted": this.marks.eviction.push(frame); break;
      case "PrefixLookup":
        this.lookups.push(frame);
        if (e.outcome !== "last_block") this.queries.push(frame);
        if (e.outcome.startsWith("hit")) this.hits.push(frame);
        if (e.hash && e.outcome !== "collision") this.link(e, frame);
        break;
      case "BlockRegistered": this.link(e, frame); break;
      case "BlockTaken": case "BlockShared": case "BlockRevived":
        append(this.acquired, e.seq_id, { frame, kind: e.kind, logical: e.logical, block: e.block_id });
        break;
      case "TableCleared":
        append(this.cleared, e.seq_id, { frame, step: row.step, table: e.block_table_before });
        break;
      case "TokenAppended":
        append(this.pieces, e.seq_id, { frame, text: row.t ?? "", length: e.num_tokens_after });
        break;
      case "RequestRestored": append(this.pieces, e.seq_id, { frame, keep: e.num_tokens }); break;
    }
  }

  /** Keep the summary of each step. What happens between two steps (an abort) counts to the one before. */
  indexStep(row, frame) {
    const e = row.e;
    const change = queueGain(row.p);
    this.free = change.is ?? this.free + change.gain;
    let step = this.steps.at(-1);
    // A step that was cut before it could say that it began ends all the same.
    if (e.kind === "StepBegan" || (e.kind === "StepEnded" && step?.step !== row.step)) {
      step = { step: row.step, begin: frame, end: frame, phase: "", done: false, failed: false, free: this.free, seqs: new Map() };
      this.steps.push(step);
      this.stepBegins.push(frame);
    }
    const index = Math.max(0, this.steps.length - 1);
    if (e.kind === "RequestAdded") this.lives.set(e.seq_id, { first: this.steps.length && !step.done ? index : this.steps.length, last: Infinity });
    if (!step) return;
    if (!step.done) Object.assign(step, { end: frame, free: this.free });
    const of = (id) => {
      if (!step.seqs.has(id)) step.seqs.set(id, { hit: 0, tokens: 0, prefill: false, preempted: false, finished: "" });
      return step.seqs.get(id);
    };
    switch (e.kind) {
      case "BatchScheduled": step.phase = e.phase; break;
      case "PrefixReused": of(e.seq_id).hit = e.num_cached_tokens_after - e.num_cached_tokens_before; break;
      case "RequestScheduled": {
        const did = Object.assign(of(e.seq_id), { tokens: e.num_scheduled_tokens_after, prefill: e.is_prefill_after });
        this.mostTokens = Math.max(this.mostTokens, did.hit + did.tokens);
        break;
      }
      case "RequestPreempted": Object.assign(of(e.seq_id), { hit: 0, tokens: 0, preempted: true }); break;
      case "RequestFinished":
        of(e.seq_id).finished = e.reason;
        if (this.lives.has(e.seq_id)) this.lives.get(e.seq_id).last = index;
        break;
      case "RequestRestored":
        of(e.seq_id).finished = "";
        if (this.lives.has(e.seq_id)) this.lives.get(e.seq_id).last = Infinity;
        break;
      case "StepEnded": Object.assign(step, { done: true, failed: Boolean(e.failed) }); break;
    }
  }

  /** The index in `steps` of the step that a frame belongs to, or -1 before the first. */
  stepIndex(frame) {
    return countUpTo(this.stepBegins, frame) - 1;
  }

  link(event, frame) {
    if (this.links.has(event.hash)) return;
    this.links.set(event.hash, { parent: event.parent_hash, tokens: event.token_ids, seen: frame });
  }

  /** The text that a request has generated up to a frame. */
  textOf(seqId, frame) {
    const pieces = [];
    for (const piece of this.pieces.get(seqId) ?? []) {
      if (piece.frame > frame) break;
      if (piece.keep === undefined) pieces.push(piece);
      else while (pieces.length && pieces.at(-1).length > piece.keep) pieces.pop();
    }
    return pieces.map((piece) => piece.text).join("");
  }

  changed() {
    for (const listener of this.listeners) listener();
  }
}

/**
 * Keep a store in step with its model until the signal aborts.
 * @param {{get: Function, on: Function, off: Function, send: Function}} model
 */
export function connectStore(model, signal) {
  const store = new RowStore(model.get("initial"));
  let asked = -1;
  const take = (piece) => {
    if (!piece || !Array.isArray(piece.rows)) return;
    if (piece.start === 0 && piece.total < store.rows.length) store.reset(model.get("initial"));
    if (store.add(piece.start, piece.rows, piece.vocab, piece.total)) asked = -1;
    else if (asked !== store.rows.length) {   // ask once for what is missing, not for every piece that comes meanwhile
      asked = store.rows.length;
      model.send({ action: "resync", have: store.rows.length });
    }
    store.changed();
  };
  const onChunk = () => take(model.get("chunk"));
  const onMessage = (message) => {
    if (message?.type !== "rows") return;
    take(message);
    // The answer is on its way in pieces; what a later chunk left open is asked for once it is through.
    if (store.rows.length < store.total && message.start + message.rows.length >= message.total) onChunk();
  };
  const onInitial = () => {
    store.reset(model.get("initial"));
    asked = -1;
    onChunk();
  };
  const handlers = [["change:chunk", onChunk], ["msg:custom", onMessage], ["change:initial", onInitial]];
  for (const [name, handler] of handlers) model.on(name, handler);
  signal?.addEventListener("abort", () => {
    for (const [name, handler] of handlers) model.off(name, handler);
    store.listeners.clear();
  });
  onChunk();
  return store;
}
