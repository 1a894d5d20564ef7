// The ledger's state document: applying and undoing patches, and reading what it says. Nothing here decides what an
// engine would do; every change was made by the engine and arrives as a patch with its value before and after.

function walk(state, path) {
  let node = state;
  for (const key of path) node = node[key];
  return node;
}

function copy(value) {
  return value !== null && typeof value === "object" ? structuredClone(value) : value;
}

function mismatch(patch, why) {
  return new Error(`patch ${JSON.stringify(patch)} does not fit the state: ${why}`);
}

function applyPatch(state, patch) {
  const [op, path] = patch;
  if (op === "set") {
    const parent = walk(state, path.slice(0, -1));
    const key = path[path.length - 1];
    if (patch[3] === null) delete parent[key];
    else parent[key] = copy(patch[3]);
    return;
  }
  const list = walk(state, path);
  if (!Array.isArray(list)) throw mismatch(patch, "there is no list at that path");
  if (op === "push") list.push(copy(patch[2]));
  else if (op === "pop") {
    if (list[list.length - 1] !== patch[2] && typeof patch[2] !== "object") throw mismatch(patch, "another value is last");
    list.pop();
  } else if (op === "link") {
    const at = patch[3] === null ? 0 : list.indexOf(patch[3]) + 1;
    if (patch[3] !== null && at === 0) throw mismatch(patch, `${patch[3]} is not in the list`);
    list.splice(at, 0, patch[2]);
  } else if (op === "unlink") {
    const at = list.indexOf(patch[2]);
    if (at < 0) throw mismatch(patch, `${patch[2]} is not in the list`);
    list.splice(at, 1);
  } else throw mismatch(patch, "an unknown kind of patch");
}

/** The patch that undoes `patch`. */
export function reversePatch(patch) {
  const [op, path, a, b] = patch;
  if (op === "set") return ["set", path, b, a];
  const other = { link: "unlink", unlink: "link", push: "pop", pop: "push" }[op];
  return b === undefined ? [other, path, a] : [other, path, a, b];
}

/** Apply the patches of one event, in place. Throws when they don't fit the state. */
export function applyPatches(state, patches) {
  for (const patch of patches) applyPatch(state, patch);
}

/** Undo the patches of one event, in place. */
export function revertPatches(state, patches) {
  for (let i = patches.length - 1; i >= 0; i--) applyPatch(state, reversePatch(patches[i]));
}

/** Whether the map leads to this block. */
export function isMapped(state, blockId) {
  const { hash } = state.blocks[blockId];
  return hash !== "" && state.map[hash] === blockId;
}

/** "used" = ref_count > 0; "cached" = ref_count 0 and the map leads to it; "free" = the rest. */
export function blockState(state, blockId) {
  if (state.blocks[blockId].ref_count > 0) return "used";
  return isMapped(state, blockId) ? "cached" : "free";
}

/** Numeric ids of all requests in order. */
export function seqIds(state) {
  return Object.keys(state.seqs).map(Number).sort((a, b) => a - b);
}

/** Where a table entry's tokens stand, in tokens: KV written, computed in this step, known but not computed yet. */
export function fillOf(seq, logical, blockSize) {
  const start = logical * blockSize;
  const inBlock = (n) => Math.max(0, Math.min(blockSize, n - start));
  const total = inBlock(seq.token_ids.length);
  const written = Math.min(total, inBlock(seq.num_cached_tokens));
  const computing = Math.min(total, inBlock(seq.num_cached_tokens + seq.num_scheduled_tokens)) - written;
  return { written, computing, reserved: total - written - computing, total };
}

/** A fill as one letter a token cell: w written, c being computed, r reserved, e empty. */
export function fillCells(fill, blockSize) {
  return "w".repeat(fill.written) + "c".repeat(fill.computing) + "r".repeat(fill.reserved)
    + "e".repeat(Math.max(0, blockSize - fill.total));
}

/** While a table is being given up, its entries from `logical` on are released already: `{seq, logical}` or null. */
export function releasing(rows, frame) {
  let event = frame > 0 ? rows[frame - 1].e : null;
  if (event?.kind === "BlockReturned") event = frame > 1 ? rows[frame - 2].e : null;
  return event?.kind === "BlockReleased" ? { seq: event.seq_id, logical: event.logical } : null;
}

/** For each block in a table the entries that hold it: block id → [{seq, logical}], by request. */
export function ownersOf(state, released = null) {
  const owners = new Map();
  for (const id of seqIds(state)) {
    const table = state.seqs[id].block_table;
    for (let logical = 0; logical < table.length; logical++) {
      if (released && released.seq === id && logical >= released.logical) break;
      const entry = { seq: id, logical };
      const list = owners.get(table[logical]);
      if (list) list.push(entry);
      else owners.set(table[logical], [entry]);
    }
  }
  return owners;
}

/** The tokens that a block holds: the registered ones, else those of the first table entry that leads to it. */
export function blockTokens(state, blockId, owners) {
  const { token_ids: registered } = state.blocks[blockId];
  if (registered.length) return registered;
  const entry = owners?.get(blockId)?.[0];
  if (!entry) return [];
  const size = state.block_size;
  return state.seqs[entry.seq].token_ids.slice(entry.logical * size, (entry.logical + 1) * size);
}

/** Where a position of a request lives, as a page table says it; `block` and `slot` are null without an entry. */
export function translate(state, seqId, position) {
  const size = state.block_size;
  const logical = Math.floor(position / size);
  const offset = position % size;
  const seq = state.seqs[seqId];
  const block = seq.block_table[logical] ?? null;
  return {
    position, logical, offset, block, slot: block === null ? null : block * size + offset,
    token: seq.token_ids[position] ?? null,
    written: position < seq.num_cached_tokens,
    computing: position >= seq.num_cached_tokens && position < seq.num_cached_tokens + seq.num_scheduled_tokens,
  };
}
