// Made from nanovllm_edu/widgets/src by scripts/build_widgets.py. Change the sources, not this file.

// ─── dom.js ──────────────────────────────────────────────────────────────────────────────────────────────
// Small helpers over the DOM. Text reaches the page as text nodes and attributes alone, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, handler] of Object.entries(value)) node.addEventListener(type, handler);
    else setAttr(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

/** An HTML element: `h("b", {class: "nve-x", text: "…", on: {click}}, child, "text")`. */
function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set an attribute if it changes; false, null and undefined take it away, true sets it empty. */
function setAttr(node, name, value) {
  if (value === false || value === null || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const keyed = new WeakMap();

/**
 * Make `parent`'s children stand for `items`, in order. A key keeps its node, so hover, focus and scrolling survive.
 * `update` is called for each item only when `sign(item)` (all of it that shows) differs from the last time.
 */
function syncList(parent, items, { key, create, update, sign = () => NaN }) {
  const old = keyed.get(parent) ?? new Map();
  const next = new Map();
  const focused = parent.ownerDocument.activeElement;
  const hadFocus = focused && parent.contains(focused) ? focused : null;
  for (const item of items) {
    const k = key(item);
    const entry = old.get(k) ?? { node: create(item), sign: undefined };
    const signature = sign(item);
    if (entry.sign !== signature) {
      entry.sign = signature;
      update(entry.node, item);
    }
    next.set(k, entry);
  }
  for (const [k, { node }] of old) if (!next.has(k)) node.remove();
  let at = parent.firstChild;
  for (const { node } of next.values()) {
    if (at && node !== at && at.nextSibling === node) {   // one item left this place for a later one: move that one
      const moved = at;
      at = node;
      parent.append(moved);
    }
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  keyed.set(parent, next);
  if (hadFocus?.isConnected && parent.ownerDocument.activeElement !== hadFocus) hadFocus.focus({ preventScroll: true });
}

/** Arrow keys move focus among the items of a list or grid, of which one alone is a tab stop. */
function roving(container, selector) {
  const items = () => [...container.querySelectorAll(selector)];
  const focus = (item) => {
    for (const other of container.querySelectorAll(`${selector}[tabindex="0"]`)) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  };
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (!item || item.tabIndex === 0) return;
    for (const other of container.querySelectorAll(`${selector}[tabindex="0"]`)) other.tabIndex = -1;
    item.tabIndex = 0;
  });
  container.addEventListener("keydown", (event) => {
    const item = event.target.closest?.(selector);
    if (!item || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const all = items();
    const at = all.indexOf(item);
    const target = {
      ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1], Home: () => all[0], End: () => all[all.length - 1],
      ArrowDown: () => inLine(all, at, 1), ArrowUp: () => inLine(all, at, -1),
    }[event.key]?.();
    if (target === undefined && !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    event.stopPropagation();
    if (target) focus(target);
  });
}

/** The item below (1) or above (-1): in the next line of the layout, the one nearest in x. */
function inLine(all, at, direction) {
  const here = all[at].getBoundingClientRect();
  let best;
  let bestCost = Infinity;
  for (let i = at + direction; i >= 0 && i < all.length; i += direction) {
    const there = all[i].getBoundingClientRect();
    const down = (there.top - here.top) * direction;
    if (down < 2) continue;
    const cost = down * 1e4 + Math.abs(there.left - here.left);
    if (cost >= bestCost) { if (down * 1e4 > bestCost) break; else continue; }
    best = all[i];
    bestCost = cost;
  }
  return best;
}

/** Exactly one item of a roving container is a tab stop: the focused one, else the first. Call it after a change. */
function keepTabStop(container, selector) {
  if (container.contains(container.ownerDocument.activeElement)) {
    if (container.querySelector(`${selector}[tabindex="0"]`)) return;
  }
  const first = container.querySelector(selector);
  for (const item of container.querySelectorAll(`${selector}[tabindex="0"]`)) if (item !== first) item.tabIndex = -1;
  if (first && first.tabIndex !== 0) first.tabIndex = 0;
}

/** Let the children of a list slide from their old places to their new ones while `change` rearranges them. */
function slide(list, change) {
  if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return change();
  const before = new Map([...list.children].map((node) => [node, node.getBoundingClientRect()]));
  change();
  for (const node of list.children) {
    const from = before.get(node);
    if (!from) continue;
    const to = node.getBoundingClientRect();
    const [x, y] = [from.left - to.left, from.top - to.top];
    if (x || y) node.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 200, easing: "ease-out" });
  }
}

/**
 * Content of a widget that is seen in short form and heard in words. (With an aria-label the seen text would have to
 * be part of it, piece by piece; so the words are content too, out of sight.)
 */
function faceAndWords(words, ...face) {
  return [h("span", { class: "nve-spoken", text: words }), h("span", { class: "nve-face", "aria-hidden": "true" }, ...face)];
}

/** A panel's frame: a heading with a hint, and a body. */
function panelFrame(name, title, hint) {
  const id = `nve-${name}-${Math.random().toString(36).slice(2, 9)}`;
  const heading = h("h3", { class: "nve-h", id }, title, " ", h("em", { text: hint }));
  const node = h("section", { class: `nve-panel nve-panel-${name}`, "data-panel": name, "aria-labelledby": id }, heading);
  return { node, heading };
}

// ─── names.js ────────────────────────────────────────────────────────────────────────────────────────────
// Names, colours and short forms: how ids, hashes and tokens look everywhere in the view.

/** How many colours requests cycle through; the letter tells requests of one colour apart. */
const NUM_HUES = 7;

/** Request name: seq_id 0 → A, 25 → Z, 26 → AA (the same rule as `nanovllm_edu.render.seq_name`). */
function seqName(seqId) {
  let name = "";
  for (let n = Number(seqId); n >= 0; n = Math.floor(n / 26) - 1) name = String.fromCharCode(65 + (n % 26)) + name;
  return name;
}

/** The colour class of a request. */
function hueClass(seqId) {
  return `nve-h${Number(seqId) % NUM_HUES}`;
}

/** The first 4 of a hash's 16 hex digits. */
function shortHash(hash) {
  return hash.slice(0, 4);
}

/** Six colours for a hash, drawn as 3 × 2 squares (as in the still pictures); the digits beside them say the rest. */
function identicon(hash) {
  return [0, 1, 2, 3, 0, 2].map((k, i) => `hsl(${parseInt(hash[k], 16) * 24} 55% ${i % 2 ? 45 : 62}%)`);
}

/** A token as readable text: white space and control characters become visible signs. */
function visibleToken(text) {
  return text
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/^ /, "·")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "␦");
}

/** The text of a token; an id without a text (a model-less engine) stands for itself. */
function tokenText(vocab, tokenId) {
  const text = vocab.get(String(tokenId));
  return text === undefined ? `⟨${tokenId}⟩` : text;
}

/** Tokens as running text on one line, cut to `limit` characters. */
function previewTokens(vocab, tokenIds, limit = 60) {
  let text = "";
  for (const id of tokenIds) {
    const piece = tokenText(vocab, id);
    text += text && !vocab.has(String(id)) ? ` ${piece}` : piece;
    if (text.length > limit) return `${oneLine(text.slice(0, limit))}…`;
  }
  return oneLine(text);
}

function oneLine(text) {
  return text.replace(/\n/g, "⏎").replace(/\s/g, " ").replace(/[\u0000-\u001f\u202a-\u202e\u2066-\u2069]/g, "␦");
}

/** "1 block", "2 blocks". */
function count(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

// ─── parts.js ────────────────────────────────────────────────────────────────────────────────────────────
// Pieces that several panels share: request chips, hash swatches, sentences with ids that light up.

/** A request's letter in its colour. */
function seqTag(seqId) {
  return h("b", { class: `nve-seq ${hueClass(seqId)}`, "data-nve-seq": seqId, text: seqName(seqId) });
}

/** A block's id, lit with the shared selection. */
function blockTag(blockId) {
  return h("b", { class: "nve-blockid", "data-nve-block": blockId, text: `#${blockId}` });
}

/** The colour pattern of a hash. */
function swatch(hash) {
  return h("span", { class: "nve-ident", "aria-hidden": "true" },
    ...identicon(hash).map((color) => h("i", { style: `background:${color}` })));
}

/** Pattern and first digits of a hash. */
function hashTag(hash) {
  return h("span", { class: "nve-hash", title: hash }, swatch(hash), h("code", { text: shortHash(hash) }));
}

/** The nodes of a sentence's parts. */
function sentenceNodes(parts) {
  return parts.map((part) => {
    if (typeof part === "string") return document.createTextNode(part);
    if ("seq" in part) return h("b", { class: `nve-seq ${hueClass(part.seq)}`, "data-nve-seq": part.seq, text: part.text });
    if ("block" in part) return h("b", { class: "nve-blockid", "data-nve-block": part.block, text: part.text });
    if ("hash" in part) return h("code", { title: part.hash, text: part.text });
    if ("code" in part) return h("code", { text: part.code });
    return h("b", { text: part.b ?? part.text ?? "" });
  });
}

/** Token cells: one small box each, in one line up to 8, else in two. `position` numbers them if given. */
function cellBoxes(cells, position = null) {
  return h("span", { class: `nve-cells${cells.length > 8 ? " nve-dense" : ""}`, style: `--n:${Math.min(cells.length, 8)}` },
    ...[...cells].map((c, i) => h("i", {
      class: `nve-c-${c}`, "data-position": position === null || c === "e" ? false : position + i,
    })));
}

/** Fill as a bar, where single tokens would be too small to see or too many to draw. */
function fillBar(cells) {
  const share = (letter) => `${(100 * [...cells].filter((c) => c === letter).length) / cells.length}%`;
  return h("span", { class: "nve-fillbar" },
    ...["w", "k", "c", "r"].map((letter) => h("i", { class: `nve-c-${letter}`, style: `width:${share(letter)}` })));
}

/** A sentence's parts as plain text. */
function sentenceText(parts) {
  return parts.map((part) => (typeof part === "string" ? part : part.text ?? part.code ?? part.b ?? "")).join("");
}

/** Tokens as chips; `cells` gives one letter each (w, c, r) for how far the model is with it. */
function tokenChips(vocab, tokenIds, cells = "") {
  const states = { w: "KV written", c: "being computed in this step", r: "not computed yet" };
  return tokenIds.map((id, i) => h("span", {
    class: `nve-token nve-token-${cells[i] ?? "w"}`, text: visibleToken(tokenText(vocab, id)) || "∅",
    title: `token ${id}${cells[i] ? `: ${states[cells[i]]}` : ""}`,
  }));
}

// ─── ledger.js ───────────────────────────────────────────────────────────────────────────────────────────
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
function reversePatch(patch) {
  const [op, path, a, b] = patch;
  if (op === "set") return ["set", path, b, a];
  const other = { link: "unlink", unlink: "link", push: "pop", pop: "push" }[op];
  return b === undefined ? [other, path, a] : [other, path, a, b];
}

/** Apply the patches of one event, in place. Throws when they don't fit the state. */
function applyPatches(state, patches) {
  for (const patch of patches) applyPatch(state, patch);
}

/** Undo the patches of one event, in place. */
function revertPatches(state, patches) {
  for (let i = patches.length - 1; i >= 0; i--) applyPatch(state, reversePatch(patches[i]));
}

/** Whether the map leads to this block. */
function isMapped(state, blockId) {
  const { hash } = state.blocks[blockId];
  return hash !== "" && state.map[hash] === blockId;
}

/** "used" = ref_count > 0; "cached" = ref_count 0 and the map leads to it; "free" = the rest. */
function blockState(state, blockId) {
  if (state.blocks[blockId].ref_count > 0) return "used";
  return isMapped(state, blockId) ? "cached" : "free";
}

/** Numeric ids of all requests in order. */
function seqIds(state) {
  return Object.keys(state.seqs).map(Number).sort((a, b) => a - b);
}

/** Where a table entry's tokens stand, in tokens: KV written, computed in this step, known but not computed yet. */
function fillOf(seq, logical, blockSize) {
  const start = logical * blockSize;
  const inBlock = (n) => Math.max(0, Math.min(blockSize, n - start));
  const total = inBlock(seq.token_ids.length);
  const written = Math.min(total, inBlock(seq.num_cached_tokens));
  const computing = Math.min(total, inBlock(seq.num_cached_tokens + seq.num_scheduled_tokens)) - written;
  return { written, computing, reserved: total - written - computing, total };
}

/** A fill as one letter a token cell: w written, c being computed, r reserved, e empty. */
function fillCells(fill, blockSize) {
  return "w".repeat(fill.written) + "c".repeat(fill.computing) + "r".repeat(fill.reserved)
    + "e".repeat(Math.max(0, blockSize - fill.total));
}

/** While a table is being given up, its entries from `logical` on are released already: `{seq, logical}` or null. */
function releasing(rows, frame) {
  let event = frame > 0 ? rows[frame - 1].e : null;
  if (event?.kind === "BlockReturned") event = frame > 1 ? rows[frame - 2].e : null;
  return event?.kind === "BlockReleased" ? { seq: event.seq_id, logical: event.logical } : null;
}

/** For each block in a table the entries that hold it: block id → [{seq, logical}], by request. */
function ownersOf(state, released = null) {
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
function blockTokens(state, blockId, owners) {
  const { token_ids: registered } = state.blocks[blockId];
  if (registered.length) return registered;
  const entry = owners?.get(blockId)?.[0];
  if (!entry) return [];
  const size = state.block_size;
  return state.seqs[entry.seq].token_ids.slice(entry.logical * size, (entry.logical + 1) * size);
}

/** Where a position of a request lives, as a page table says it; `block` and `slot` are null without an entry. */
function translate(state, seqId, position) {
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

// ─── panel_pool.js ───────────────────────────────────────────────────────────────────────────────────────
// The pool: one tile a physical block, at the place of its id for ever.

const LARGE = 160;    // up to here a tile shows its token cells, hash and holders
const MEDIUM = 512;   // up to here an id and a bar; above, a coloured square

/** What a tile shows, from the state alone. Cells: w, c, r, e as in `fillCells`; k for a cached block's tokens. */
function poolBlock(state, id, holders = []) {
  const block = state.blocks[id];
  const size = state.block_size;
  const kind = blockState(state, id);
  let cells = "e".repeat(size);
  if (kind === "used" && block.hash) cells = "w".repeat(size);   // registered: full, its keys and values written
  else if (kind === "used" && holders.length) {
    const fills = holders.map(({ seq, logical }) => fillOf(state.seqs[seq], logical, size));
    cells = fillCells(fills.reduce((a, b) => (b.written > a.written ? b : a)), size);
  } else if (kind === "cached") cells = "k".repeat(size);
  const filled = cells.includes("e") ? cells.indexOf("e") : size;   // the empty ones are always last
  return { id, kind, cells, filled, hash: block.hash, refs: block.ref_count, mapped: isMapped(state, id), holders };
}

function describe(view, b) {
  const names = b.holders.map(({ seq, logical }) => `${seqName(seq)} (L${logical})`).join(", ");
  const what = {
    used: `used by ${names || "no table yet"}, ref_count ${b.refs}`,
    cached: "free, but still cached: the map leads to it",
    free: b.hash ? "free; its old contents are no longer in the map" : "free and empty",
  }[b.kind];
  const tokens = blockTokens(view.state, b.id, view.owners);
  const text = tokens.length && b.kind !== "free" ? `\n“${previewTokens(view.store.vocab, tokens, 160)}”` : "";
  const hash = b.hash ? `\nhash ${b.hash}${b.mapped ? "" : " (the map does not lead here)"}` : "";
  return `block #${b.id}: ${what}${b.kind === "free" ? "" : `, ${b.filled}/${view.state.block_size} tokens`}${hash}${text}`;
}

function footNodes(b, size) {
  const shown = b.holders.length > 2 ? 1 : 2;
  const letters = b.holders.slice(0, shown).map(({ seq }) => h("b", { class: `nve-letter ${hueClass(seq)}`, text: seqName(seq) }));
  if (b.holders.length > shown) letters.push(h("b", { class: "nve-letter", text: `+${b.holders.length - shown}` }));
  const label = b.hash
    ? [swatch(b.hash), h(b.mapped ? "code" : "s", { text: shortHash(b.hash) })]
    : [h("span", { text: b.kind === "used" ? `${b.filled}/${size}` : "empty" })];
  return [...label, h("span", { class: "nve-letters" }, ...letters)];
}

function drawTile(view, node, b, tier) {
  const size = view.state.block_size;
  const first = b.holders[0];
  node.className = `nve-blk nve-${b.kind}${first ? ` ${hueClass(first.seq)}` : ""}${b.now ? " nve-now" : ""}`
    + `${b.burning ? " nve-burning" : ""}${b.refs > 1 ? " nve-shared" : ""}${b.hash && !b.mapped ? " nve-stale" : ""}`;
  setAttr(node, "data-ref-count", b.refs);
  setAttr(node, "data-state", b.kind);
  setAttr(node, "data-hash", b.hash);
  setAttr(node, "data-nve-block", b.id);
  if (tier === "small") {   // thousands of tiles: the long description comes when one is looked at
    setAttr(node, "aria-label", `block #${b.id}, ${b.kind}, ref_count ${b.refs}`);
    return node.childElementCount ? node.replaceChildren() : undefined;
  }
  const label = describe(view, b);
  setAttr(node, "title", label);
  const words = label.replace(/\n/g, ". ");
  const stripes = b.holders.slice(0, 4).map(({ seq }) => h("i", { class: hueClass(seq) }));
  const cells = size <= (tier === "large" ? 16 : 8) ? cellBoxes(b.cells) : fillBar(b.cells);
  node.replaceChildren(...faceAndWords(words,
    h("span", { class: "nve-stripe" }, ...stripes),
    h("span", { class: "nve-id", text: `#${b.id}` }),
    h("span", { class: "nve-ref", text: `×${b.refs}` }),
    cells,
    tier === "large" ? h("span", { class: "nve-foot" }, ...footNodes(b, size)) : ""));
}

function legend() {
  const item = (name, cell, text) => h("span", {}, h("i", { class: `nve-key ${name} ${cell}` }), text);
  return h("span", { class: "nve-legend", "aria-hidden": "true" }, item("", "", "used"), item("nve-cached", "", "free, cached"),
    item("nve-free", "", "free"), item("nve-key-cell", "nve-c-w", "KV written"), item("nve-key-cell", "nve-c-c", "being computed"),
    item("nve-key-cell", "nve-c-r", "not yet"));
}

/** Below the grid: the selected block (or that of the event) in words, its tokens as chips. */
function drawInspector(view, node) {
  const selected = view.selection.block ?? [...view.refs.blocks][0] ?? null;
  if (selected === null || !view.state.blocks[selected]) {
    node.replaceChildren(h("span", { class: "nve-hint", text: "Hover, focus or click a block to see its tokens and who holds it." }));
    return;
  }
  const b = poolBlock(view.state, selected, view.owners.get(selected));
  const tokens = b.kind === "free" ? [] : blockTokens(view.state, selected, view.owners);
  const holders = b.holders.flatMap(({ seq, logical }) => [" ", seqTag(seq), h("small", { text: ` L${logical}` })]);
  const words = { used: `×${b.refs}, held by`, cached: "free, still cached: a prompt with the same prefix revives it", free: "free and empty" };
  node.replaceChildren(
    h("span", { class: "nve-line" }, blockTag(selected), ` ${b.kind === "free" && b.hash ? "free; the map no longer leads to its old tokens" : words[b.kind]}`,
      ...holders, ...(b.hash ? [" · ", hashTag(b.hash)] : b.kind === "used" ? [` · ${b.filled}/${view.state.block_size}, no hash until it is full`] : [])),
    h("span", { class: "nve-tokens" }, ...tokenChips(view.store.vocab, tokens, b.cells)),
  );
}

function createPool(view) {
  const { node, heading } = panelFrame("pool", "Block pool", "place = block id, for ever");
  heading.append(legend());
  const grid = h("div", { class: "nve-pool", role: "listbox", "aria-label": "Blocks of the pool; arrow keys move, Enter pins" });
  const inspector = h("div", { class: "nve-inspector" });
  node.append(grid, inspector);
  roving(grid, ".nve-blk");
  for (const type of ["pointerover", "focusin"]) {
    grid.addEventListener(type, (event) => {
      const tile = event.target.closest?.(".nve-blk");
      if (!tile || grid.dataset.tier !== "small") return;
      const id = Number(tile.dataset.blockId);
      setAttr(tile, "title", describe(view, poolBlock(view.state, id, view.owners.get(id))));
    });
  }
  return {
    node,
    update() {
      const { state } = view;
      const tier = state.num_blocks <= LARGE ? "large" : state.num_blocks <= MEDIUM ? "medium" : "small";
      setAttr(grid, "data-tier", tier);
      const event = view.row?.e;
      const blocks = state.blocks.map((_, id) => Object.assign(poolBlock(state, id, view.owners.get(id)), {
        now: view.refs.blocks.has(id), burning: event?.kind === "EntryEvicted" && event.block_id === id,
      }));
      syncList(grid, blocks, {
        key: (b) => b.id,
        create: (b) => h("div", { role: "option", tabindex: "-1", "aria-selected": "false", "data-block-id": b.id }),
        update: (tile, b) => drawTile(view, tile, b, tier),
        sign: (b) => `${tier}${b.kind}${b.cells}${b.hash}${b.refs}${b.mapped}${b.now}${b.burning}|`
          + b.holders.map(({ seq, logical }) => `${seq}.${logical}`).join(),
      });
      keepTabStop(grid, ".nve-blk");
      this.select();
    },
    /** The selection alone changed. */
    select() {
      const { block } = view.selection;
      for (const tile of grid.querySelectorAll('[aria-selected="true"]')) setAttr(tile, "aria-selected", "false");
      if (block !== null) grid.children[block]?.setAttribute("aria-selected", "true");
      drawInspector(view, inspector);
    },
  };
}

function poolHint(state) {
  return `${count(state.num_blocks, "block")} of ${state.block_size} tokens`;
}

// ─── store.js ────────────────────────────────────────────────────────────────────────────────────────────
// The rows of one model, shared by all of its views, and what can be looked up in them without walking them all.

/** How often a thing happened up to each frame: ascending frame numbers, searched by bisection. */
function countUpTo(frames, frame) {
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
class RowStore {
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
function connectStore(model, signal) {
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

// ─── story.js ────────────────────────────────────────────────────────────────────────────────────────────
// What the panels tell, read off the state at a frame and the rows that led there.

/** The ids that an event speaks of; the view outlines them. */
function eventRefs(row) {
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
function lookupWalk(store, frame) {
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
function acquisitions(store, seqId, tableLength, frame) {
  const kinds = new Map();
  const list = store.acquired.get(seqId) ?? [];
  for (let i = countUpTo(list.map((a) => a.frame), frame) - 1; i >= 0 && kinds.size < tableLength; i--) {
    if (list[i].logical < tableLength && !kinds.has(list[i].logical)) kinds.set(list[i].logical, list[i].kind);
  }
  return kinds;
}

/** When and what a request last gave back, or null. */
function lastCleared(store, seqId, frame) {
  return (store.cleared.get(seqId) ?? []).findLast((c) => c.frame <= frame) ?? null;
}

const FINISH_REASONS = {
  eos: "end-of-sequence token", stop: "stop condition", length: "token limit", aborted: "aborted",
  kv_exhausted: "outgrew the pool",
};

/** Why a request ended, in words. */
function finishReason(seq) {
  return FINISH_REASONS[seq.finish_reason] ?? seq.finish_reason;
}

/** The figures in the header, at the cursor's frame. */
function kpis(state, store, frame) {
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
function chainNodes(state, store, walk) {
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
function chainRows(nodes, limit = 200) {
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

// ─── bar.js ──────────────────────────────────────────────────────────────────────────────────────────────
// Header, controls and the sentence: where we are in time, how to move, what just happened.

const ICONS = {
  "step-back": "M4 4h2v12H4zM16 4v12L7 10z", "event-back": "M14 4v12L5 10z", play: "M5 3l12 7-12 7z", stop: "M5 4h4v12H5zM11 4h4v12h-4z",
  "event-forward": "M6 4l9 6-9 6z", "step-forward": "M4 4l9 6-9 6zM14 4h2v12h-2z",
};

function icon(name) {
  return svg("svg", { viewBox: "0 0 20 20", class: "nve-icon", "aria-hidden": "true", focusable: "false" }, svg("path", { d: ICONS[name] }));
}

function createHeader(view) {
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
function scrubMarks(marks, total, buckets = 200) {
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

function createBar(view) {
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
function eventPlace(row) {
  if (!row) return "start";
  const name = row.e.at?.[1]?.split(".").pop() ?? row.e.kind;
  const { seq_id: seq, block_id: block } = row.e;
  const who = Number.isInteger(seq) ? seqName(seq) : Number.isInteger(block) ? `#${block}` : "";
  return `step ${row.step} · ${name}(${who})`;
}

function createSentence(view) {
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

// ─── cursor.js ───────────────────────────────────────────────────────────────────────────────────────────
// One view's place in time: a frame number and the state at it, moved by applying and undoing rows.

class Cursor {
  /** @param {import("./store.js").RowStore} store */
  constructor(store) {
    this.store = store;
    this.rewind();
  }

  rewind() {
    this.generation = this.store.generation;
    this.frame = 0;
    this.state = structuredClone(this.store.initial);
  }

  get end() {
    return this.store.rows.length;
  }

  /** The row that led to this frame, or null at the start. */
  get row() {
    return this.frame > 0 ? this.store.rows[this.frame - 1] : null;
  }

  /** Go to a frame (clamped to what is there). The shorter way: on from here, back from here, or on from the start. */
  goto(frame) {
    if (this.generation !== this.store.generation) this.rewind();
    const target = Math.max(0, Math.min(this.end, Math.round(frame)));
    if (target < this.frame - target) this.rewind();
    const { rows } = this.store;
    while (this.frame < target) applyPatches(this.state, rows[this.frame++].p);
    while (this.frame > target) revertPatches(this.state, rows[--this.frame].p);
  }

  /** The frame to stand at after one step back (-1) or on (1): the last event of a step, the start, or the newest. */
  stepTarget(direction) {
    const ends = this.store.stepEnds;
    if (direction > 0) return ends.find((end) => end > this.frame) ?? this.end;
    for (let i = ends.length - 1; i >= 0; i--) if (ends[i] < this.frame) return ends[i];
    return 0;
  }
}

// ─── panel_chat.js ───────────────────────────────────────────────────────────────────────────────────────
// The conversation: what was asked, the text that came out up to this frame, and the line to type the next prompt in.

const TURNS_SHOWN = 60;
const PROMPT_SHOWN = 1200;   // characters of a prompt that did not come from here

/** What to show of each request at this frame, oldest first. */
function turns(state, store, chat, frame) {
  const typed = new Map((chat ?? []).map((entry) => [entry.seq_id, entry]));
  return seqIds(state).slice(-TURNS_SHOWN).map((id) => {
    const seq = state.seqs[id];
    const entry = typed.get(id);
    const prompt = entry ? entry.text
      : seq.token_ids.slice(0, seq.num_prompt_tokens).map((t) => tokenText(store.vocab, t)).join("").slice(0, PROMPT_SHOWN);
    return {
      id, prompt, typed: Boolean(entry), raw: Boolean(entry?.raw), turn: entry?.turn ?? 0, reply: store.textOf(id, frame),
      status: seq.status, reason: seq.finish_reason,
    };
  });
}

function drawTurn(view, node, turn) {
  node.className = `nve-turn ${hueClass(turn.id)}${turn.now ? " nve-now" : ""}`;
  setAttr(node, "data-nve-seq", turn.id);
  const kind = turn.typed ? (turn.raw ? "raw prompt" : turn.turn > 1 ? `turn ${turn.turn}` : "") : "prompt";
  node.replaceChildren(h("b", { class: "nve-name", text: seqName(turn.id) }),
    h("div", {},
      h("p", { class: turn.typed ? "nve-asked" : "nve-asked nve-prompt" }, kind ? h("small", { text: kind }) : "", turn.prompt),
      h("p", { class: "nve-reply" }, turn.reply.trimStart() || h("span", { class: "nve-hint", text: turn.status === "WAITING" ? "waiting for its turn" : "…" }),
        turn.status === "RUNNING" ? h("span", { class: "nve-caret", "aria-hidden": "true" }) : "",
        turn.status === "FINISHED" ? h("small", { text: ` ${turn.reason}` }) : "")));
}

function createChat(view) {
  const { node } = panelFrame("chat", "Chat", view.live ? "type, and watch it enter" : "what was asked and answered");
  const list = h("div", { class: "nve-turns", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Conversation" });
  const empty = h("p", { class: "nve-hint", text: "Nothing was asked yet." });
  node.append(list, empty);
  let form = null;
  if (view.live) {
    const prompt = h("input", { type: "text", "data-input": "prompt", "aria-label": "Prompt", placeholder: "Type a prompt, then Enter", autocomplete: "off", spellcheck: "false" });
    const max = h("input", { type: "number", "data-input": "max-tokens", min: "1", value: "24", "aria-label": "Most tokens to generate" });
    const raw = h("input", { type: "checkbox", "data-input": "raw" });
    const submit = h("button", { class: "nve-go", type: "submit", "data-action": "submit", text: "Submit" });
    form = h("form", { class: "nve-form" }, h("div", { class: "nve-ask" }, prompt, submit),
      h("div", { class: "nve-options" }, h("label", {}, "at most ", max, " tokens"),
        h("label", { title: "On: the text goes to the model as it is, without the chat template and the conversation so far" }, raw, " raw, without the chat template")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      view.command({ action: "submit", prompt: prompt.value, raw: raw.checked, max_tokens: Math.trunc(Number(max.value)) });
      prompt.value = "";
      prompt.focus();
    });
    node.append(form);
  }
  let atEnd = true;
  let shown = "";
  list.addEventListener("scroll", () => { atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 24; });
  return {
    node,
    update() {
      const items = turns(view.state, view.store, view.status.chat, view.frame);
      for (const turn of items) turn.now = view.refs.seqs.has(turn.id) && view.row?.e.kind === "TokenAppended";
      syncList(list, items, {
        key: (turn) => turn.id, create: () => h("div"), update: (line, turn) => drawTurn(view, line, turn),
        sign: (turn) => JSON.stringify(turn),
      });
      empty.hidden = items.length > 0;
      list.hidden = !items.length;
      setText(empty, `Nothing was asked yet.${view.live ? " A request that is added in a cell shows here too." : ""}`);
      const sign = items.map((turn) => `${turn.id}.${turn.reply.length}.${turn.status}`).join();
      if (atEnd && sign !== shown) list.scrollTop = list.scrollHeight;
      shown = sign;
      if (form) for (const control of form.elements) control.disabled = view.status.state === "closed";
      setAttr(list, "data-turns", count(items.length, "turn"));
    },
  };
}

// ─── panel_code.js ───────────────────────────────────────────────────────────────────────────────────────
// The source of the function that made the current event, its line lit.

/**
 * What there is to show of a row: null at the start, else {file, function, line, source}.
 * `source` is {first_line, lines}, or null when the text of that line isn't at hand.
 */
function codeOf(row, sources) {
  if (!row?.e.at) return null;
  const [file, name, line] = row.e.at;
  const known = Object.hasOwn(sources ?? {}, `${file}:${name}`) ? sources[`${file}:${name}`] : null;
  const inside = known && line >= known.first_line && line < known.first_line + known.lines.length;
  return { file, function: name, line, source: inside ? known : null };
}

/** The spaces that all lines of a function begin with. */
function commonIndent(lines) {
  const indents = lines.filter((line) => line.trim()).map((line) => line.length - line.trimStart().length);
  return indents.length ? Math.min(...indents) : 0;
}

function createCode(view) {
  const { node, heading } = panelFrame("code", "Code", "");
  const where = heading.querySelector("em");
  const list = h("div", { class: "nve-code", tabindex: "0", role: "group" });
  const note = h("p", { class: "nve-hint" });
  node.append(list, note);
  let shown = null;
  let lit = null;
  const draw = (code) => {
    const indent = commonIndent(code.source.lines);
    list.replaceChildren(...code.source.lines.map((text, i) => h("div", { class: "nve-codeline", "data-line": code.source.first_line + i },
      h("span", { class: "nve-lineno", "aria-hidden": "true", text: String(code.source.first_line + i) }),
      h("code", { text: text.slice(indent) || " " }))));
    list.scrollTop = 0;
  };
  return {
    node,
    update() {
      const code = codeOf(view.row, view.model.get("sources"));
      setText(where, code ? `${code.file} · ${code.function}, line ${code.line}` : "the line that made the change");
      list.hidden = !code?.source;
      note.hidden = !list.hidden;
      if (!code?.source) {
        setText(note, code ? `The source of this line isn’t here: it is ${code.file}, line ${code.line}, in ${code.function}, of another version or another session.`
          : view.row ? "This event does not say which line made it." : "Nothing has happened yet. Each event shows the line that made it here.");
        shown = lit = null;
        return;
      }
      if (shown !== code.source) {
        shown = code.source;
        lit = null;
        draw(code);
      }
      setAttr(list, "aria-label", `Source of ${code.function}; line ${code.line} made the change`);
      const line = list.children[code.line - shown.first_line];
      if (line === lit) return;
      if (lit) setAttr(lit, "aria-current", false);
      setAttr(line, "aria-current", "true");
      lit = line;
      const top = line.offsetTop - list.offsetTop;
      if (top < list.scrollTop + 20 || top > list.scrollTop + list.clientHeight - 60) list.scrollTop = top - list.clientHeight / 3;
    },
  };
}

// ─── panel_hashes.js ─────────────────────────────────────────────────────────────────────────────────────
// Hash chains as a tree that grows downwards: a shared prefix is one spine until it forks. Beside it the lookup walk.

const ROW = 25;    // px; the CSS gives rows this height
const LANE = 16;

const x = (lane) => lane * LANE + 9;
const y = (index) => (index + 1) * ROW + ROW / 2;   // row -1 is the root

/** What a row's node is called in words. */
function nodeNote(node, blockSize) {
  switch (node.kind) {
    case "tail":
      return node.blocks.length > 1 ? `L${node.logical}–L${node.logical + node.blocks.length - 1}: no hash yet`
        : `L${node.logical}: ${node.tokens.length}/${blockSize}, no hash yet`;
    case "gone": return "left the map";
    case "miss": return `L${node.logical}: not in the map`;
    case "collision": return `L${node.logical}: the map's entry stands for another prefix`;
    case "last_block": return `L${node.logical}: never looked up`;
    default: return node.blocks.length ? "" : "not in the map";
  }
}

function drawLink(view, line, { node, lane, verdict }) {
  line.className = `nve-link nve-link-${node.kind}${node.seqs.length || node.refs ? "" : " nve-idle"}${node.now ? " nve-now" : ""}`;
  line.style.paddingLeft = `${x(lane) + 14}px`;
  const blocks = node.kind === "tail" ? node.blocks : [...node.blocks, ...node.copies];
  setAttr(line, "data-nve-block", blocks.length ? blocks.join(" ") : false);
  setAttr(line, "title", `${node.hash ? `hash ${node.hash}\n` : ""}${previewTokens(view.store.vocab, node.tokens, 300)}`);
  const shown = blocks.slice(0, node.kind === "tail" ? 3 : 2);   // a copy or two; a prefix may have many
  line.replaceChildren(
    ...(node.hash ? [swatch(node.hash), h("code", { text: shortHash(node.hash) })] : []),
    ...shown.flatMap((id, i) => [h("b", { class: `nve-blockid${i >= node.blocks.length ? " nve-copy" : ""}`, text: `#${id}` })]),
    blocks.length > shown.length ? h("small", { text: `+${blocks.length - shown.length}` }) : "",
    h("span", { class: "nve-text", text: previewTokens(view.store.vocab, node.tokens, 80) }),
    h("small", { class: verdict?.ok ? "nve-good" : "", text: verdict?.text ?? nodeNote(node, view.state.block_size) }),
    h("span", { class: "nve-holders" }, ...node.seqs.slice(0, 4).map(seqTag), node.seqs.length > 4 ? `+${node.seqs.length - 4}` : ""));
}

/** The rails: from each parent's dot straight down, or along the parent's lane and around the corner at a fork. */
function rails(rows) {
  const parts = [];
  for (const { node, lane, parent, index } of rows) {
    const from = parent ? { lane: parent.lane, y: y(parent.index) } : { lane: 0, y: y(-1) };
    const px = x(from.lane);
    const cx = x(lane);
    const cy = y(index);
    const one = node.seqs.length === 1 ? ` ${hueClass(node.seqs[0])} nve-own` : "";
    const path = lane === from.lane ? `M${px} ${from.y}V${cy}` : `M${px} ${from.y}V${cy - 8}Q${px} ${cy} ${px + 8} ${cy}H${cx}`;
    parts.push(svg("path", { d: path, class: `nve-rail nve-rail-${node.kind}${node.seqs.length > 1 ? " nve-spine" : ""}${one}` }));
  }
  for (const { node, lane, index } of rows) {
    const one = node.seqs.length === 1 ? ` ${hueClass(node.seqs[0])} nve-own` : "";
    const stop = ["miss", "collision", "gone"].includes(node.kind);
    const at = { transform: `translate(${x(lane)} ${y(index)})` };
    parts.push(stop
      ? svg("g", at, svg("circle", { r: 6, class: "nve-dot-back" }), svg("path", { d: "M-4 -4L4 4M-4 4L4 -4", class: "nve-cross" }))
      : svg("circle", { ...at, r: node.seqs.length > 1 ? 5.5 : 4.5, class: `nve-dot nve-dot-${node.kind}${node.seqs.length ? " nve-held" : ""}${one}` }));
  }
  parts.push(svg("circle", { cx: x(0), cy: y(-1), r: 3, class: "nve-dot nve-held" }));
  return parts;
}

/** The walk along a prompt's blocks: one sign a block, then why it stopped. */
function walkNodes(view) {
  const { walk } = view;
  if (!walk) return [h("span", { class: "nve-hint", text: "No prompt has been looked up yet." })];
  const skip = walk.lookups.length > 14 ? walk.lookups.length - 10 : 0;   // of a long row of hits the middle is left out
  const steps = walk.lookups.flatMap((lookup, i) => {
    if (skip && i >= 6 && i < 6 + skip) return i === 6 ? [h("span", { class: "nve-arrow", text: `→ ${count(skip, "hit")} more` })] : [];
    const hit = lookup.outcome.startsWith("hit");
    const last = lookup.outcome === "last_block";
    return [i ? h("span", { class: "nve-arrow", text: "→" }) : "",
      h("span", { class: `nve-walkstep ${hit ? "nve-good" : last ? "" : "nve-bad"}` }, `L${lookup.logical} ${hit ? "✓" : last ? "⊘" : "✗"} `,
        hit ? blockTag(lookup.block_id) : "")];
  });
  const { length } = walk.lookups;
  const last = walk.lookups[length - 1];
  const formula = last.hash ? h("p", { class: "nve-formula" }, h("code", {}, `h${last.logical} = xxh64(`,
    last.parent_hash ? `${shortHash(last.parent_hash)}… ‖ ` : "", `tokens of L${last.logical}) = ${shortHash(last.hash)}…`), ...verdictNodes(last)) : null;
  const because = {
    miss: `Stops at L${last.logical}: this prefix is not in the cache, so nothing behind it can be.`,
    collision: `Stops at L${last.logical}: equal hash, but not the same whole prefix. That is no hit.`,
    last_block: `L${last.logical} is its last block and never looked up: one token at least must go through the model, or there would be nothing to sample from.`,
  }[walk.end];
  return [h("p", {}, "Lookup of ", seqTag(walk.seq), h("small", { text: ` in step ${walk.step}: ` }), ...steps),
    ...(formula ? [formula] : []), ...(because ? [h("p", { class: "nve-because", text: because })] : []),
    ...(walk.denied ? [h("p", { class: "nve-because nve-bad", text: `It needs ${count(walk.denied.num_needed_blocks, "free block")} and ${walk.denied.num_free_blocks} are left: it waits.` })] : [])];
}

function verdictNodes(lookup) {
  if (lookup.outcome === "miss") return [" → not in the map"];
  if (lookup.outcome === "collision") return [" → in the map: ", blockTag(lookup.block_id), h("b", { class: "nve-bad", text: " ✗ another prefix" })];
  return [" → in the map: ", blockTag(lookup.block_id),
    h("span", { class: "nve-good", text: ` ✓ same whole prefix, ${lookup.outcome === "hit_used" ? "in use" : "free but still cached"}` })];
}

function createHashes(view) {
  const { node } = panelFrame("hashes", "Hash chains", "each link seals the whole prefix");
  const graph = svg("svg", { class: "nve-rails", "aria-hidden": "true", focusable: "false" });
  const root = h("div", { class: "nve-link nve-root-link" }, h("code", { text: "−1" }), h("small", { text: " every chain begins here" }));
  const list = h("div", { class: "nve-links" });
  const chains = h("div", { class: "nve-chains", tabindex: "0", role: "group", "aria-label": "Hash chains" }, graph, root, list);
  const more = h("p", { class: "nve-hint" });
  const walkBox = h("div", { class: "nve-walk" });
  const summary = h("summary");
  const entries = h("div", { class: "nve-map" });
  const map = h("details", {}, summary, entries);
  node.append(chains, more, walkBox, map);
  map.addEventListener("toggle", () => view.invalidate());
  let drawn = "";
  return {
    node,
    update() {
      const { rows, hidden } = chainRows(chainNodes(view.state, view.store, view.walk));
      for (const { node: n } of rows) n.now = [...n.blocks, ...n.copies].some((id) => view.refs.blocks.has(id));
      syncList(list, rows.map((row) => ({ ...row, verdict: verdictOf(view.walk, row.node) })), {
        key: (row) => row.node.key,
        create: () => h("div", {}),
        update: (line, row) => drawLink(view, line, row),
        sign: ({ node: n, lane, verdict }) => [lane, n.kind, n.blocks, n.copies, n.seqs, n.tokens.length, n.now, verdict?.text, view.vocabSize].join("|"),
      });
      const lanes = Math.max(0, ...rows.map((row) => row.lane));
      const sign = rows.map((r) => `${r.lane}.${r.parent?.index}.${r.node.kind}.${r.node.seqs}`).join();
      if (sign !== drawn) {
        drawn = sign;
        setAttr(graph, "width", x(lanes) + 12);
        setAttr(graph, "height", (rows.length + 1) * ROW);
        graph.replaceChildren(...rails(rows));
      }
      more.hidden = !hidden;
      setText(more, `and ${count(hidden, "more entry").replace("entrys", "entries")} not drawn`);
      walkBox.classList.toggle("nve-past", !view.walk?.current);
      walkBox.replaceChildren(...walkNodes(view));
      const hashes = Object.keys(view.state.map);
      setText(summary, `The map: ${hashes.length} ${hashes.length === 1 ? "hash → its block" : "hashes → their blocks"}`);
      map.hidden = !hashes.length;
      if (map.open) {
        entries.replaceChildren(...hashes.slice(0, 500).map((hash) => h("span", { class: "nve-entry", "data-nve-block": view.state.map[hash] },
          hashTag(hash), " → ", h("b", { text: `#${view.state.map[hash]}` }))));
      }
    },
  };
}

/** What the running lookup found at this node. */
function verdictOf(walk, node) {
  if (!walk?.current || node.kind !== "block") return null;
  const lookup = walk.lookups.find((l) => l.hash === node.hash && l.outcome.startsWith("hit"));
  if (!lookup) return null;
  return { ok: true, text: `✓ hit by ${seqName(walk.seq)}, ${lookup.outcome === "hit_used" ? "in use" : "free"}` };
}

// ─── panel_invariants.js ─────────────────────────────────────────────────────────────────────────────────
// The ledger's law, article by article, as Python judged it at the end of each step.

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
function verdictAt(store, state, frame) {
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

function createInvariants(view) {
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

// ─── panel_queue.js ──────────────────────────────────────────────────────────────────────────────────────
// The free queue: a conveyor. Blocks leave at the head, come back at the tail, and a hit is lifted out of the middle.

/** The queue's items, with a gap where the current event just lifted a block out or took it from the head. */
function queueItems(state, event) {
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

function createQueue(view) {
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

// ─── panel_sequences.js ──────────────────────────────────────────────────────────────────────────────────
// Requests by status: WAITING → RUNNING → FINISHED, with why each stands where it stands.

const FINISHED_CARDS = 12;

/** The three lanes: waiting and running in queue order (head first), finished newest first. */
function lanes(state) {
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

function createSequences(view) {
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

// ─── panel_tables.js ─────────────────────────────────────────────────────────────────────────────────────
// Block tables: one row a request, logical → physical, and the address translator.

const CELLS_WITH_TOKENS = 400;   // with more table entries than this, a bar stands for an entry's tokens
const FINISHED_ROWS = 8;   // older finished requests fold away behind a button

/** A request's condition in a word or two. */
function condition(seq) {
  if (seq.status === "FINISHED") return "finished";
  if (seq.status === "WAITING" && !seq.block_table.length) return seq.num_preemptions ? "preempted" : "waiting";
  if (seq.status === "WAITING") return "prefill";
  return seq.is_prefill ? "prefill" : "decode";
}

/** The tag in a cell: how the entry came to the table, and whether the block is shared now. */
function cellTag(refCount, how) {
  if (refCount > 1) return "shared";
  if (how === "BlockRevived") return "revived";
  return how === "BlockShared" ? "hit" : "";
}

function drawCell(view, node, cell) {
  const { state } = view;
  node.className = `nve-cell${cell.now ? " nve-now" : ""}${cell.released ? " nve-released" : ""}`;
  setAttr(node, "data-logical", cell.logical);
  setAttr(node, "data-physical", cell.block);
  setAttr(node, "data-nve-block", cell.block);
  const full = cell.fill.total === state.block_size;
  const tag = cell.released ? "freed" : cell.tag;
  const words = `logical block ${cell.logical} is block ${cell.block}, ${cell.fill.total} of ${state.block_size} `
    + `tokens, ${cell.fill.written} with keys and values written${tag ? `, ${tag}` : ""}`;
  const ticks = cell.bar ? fillBar(cell.cells) : cellBoxes(cell.cells, cell.logical * state.block_size);
  node.replaceChildren(...faceAndWords(words,
    h("small", {}, `L${cell.logical}`, full ? "" : ` ${cell.fill.total}/${state.block_size}`,
      tag ? h("span", { class: "nve-tag", text: tag }) : ""),
    h("b", { text: `#${cell.block}` }), ticks));
}

/** What a row says beside its cells. */
function rowNote(view, id, seq) {
  const cleared = lastCleared(view.store, id, view.frame);
  const walk = view.walk?.current && view.walk.seq === id ? view.walk : null;
  if (walk?.end === "last_block") return ["its last block is never looked up"];
  if (walk?.denied) return [`needs ${count(walk.denied.num_needed_blocks, "block")}, ${walk.denied.num_free_blocks} free: waits`];
  if (seq.block_table.length) return [];
  if (!cleared) return seq.status === "FINISHED" ? [finishReason(seq)] : [`needs ${count(Math.ceil(seq.token_ids.length / view.state.block_size), "block")}`];
  const blocks = [...cleared.table].reverse();
  const shown = blocks.slice(0, 8).flatMap((block) => [" ", blockTag(block)]);
  const why = seq.status === "FINISHED" ? `${finishReason(seq)}; gave back` : "gave back";
  return [why, ...shown, blocks.length > 8 ? ` and ${blocks.length - 8} more` : "", ` in step ${cleared.step}, last first`];
}

function drawTableRow(view, node, row) {
  const { id, seq } = row;
  const [chip, table, note] = node.children;
  node.className = `nve-row ${hueClass(id)}${seq.status === "FINISHED" ? " nve-done" : ""}`;
  setAttr(node, "data-status", seq.status);
  setAttr(chip, "class", `nve-chip ${hueClass(id)}${row.now ? " nve-now" : ""}`);
  chip.replaceChildren(h("b", { text: seqName(id) }), h("small", { text: condition(seq) }),
    h("small", { text: count(seq.token_ids.length, "token") }));
  syncList(table, row.cells, {
    key: (cell) => cell.logical,
    create: () => h("span", { role: "gridcell", tabindex: "-1" }),
    update: (cell, item) => drawCell(view, cell, item),
    sign: (cell) => `${cell.bar}|${cell.block}|${cell.cells}|${cell.tag}|${cell.now}|${cell.released}`,
  });
  table.hidden = !row.cells.length;
  note.replaceChildren(...rowNote(view, id, seq));
}

/** Of the first request that holds blocks (else the last one there is) the newest token with keys and values. */
function newestToken(state, ids) {
  const seq = ids.find((id) => state.seqs[id].block_table.length) ?? ids[ids.length - 1];
  return seq === undefined ? null : { seq, position: Math.max(0, state.seqs[seq].num_cached_tokens - 1) };
}

/** The address translator: a position of a request → logical block, physical block, offset, slot. */
function createTranslator(view) {
  const select = h("select", { "aria-label": "Request whose position is translated" });
  const input = h("input", { type: "number", min: "0", value: "0", "aria-label": "Position of a token" });
  const out = h("output", { class: "nve-out" });
  const node = h("div", { class: "nve-translator" }, h("b", { text: "Where is a token?" }), select,
    h("label", {}, "position ", input), out);
  const show = () => {
    const { state } = view;
    const seq = state.seqs[select.value];
    if (!seq) return setText(out, "no request yet");
    const at = translate(state, select.value, Math.max(0, Math.trunc(Number(input.value) || 0)));
    const size = state.block_size;
    const parts = [`position ${at.position} = ${at.logical} · ${size} + ${at.offset}`];
    if (at.token === null) parts.push(` → the request has ${count(seq.token_ids.length, "token")}: none there yet`);
    else if (at.block === null) parts.push(` → logical block ${at.logical} is not in its table${seq.status === "FINISHED" ? " any more" : " yet"}`);
    else {
      parts.push(" → block ", blockTag(at.block), ` (logical ${at.logical}), offset ${at.offset} → slot `,
        h("b", { text: String(at.slot) }), ` = ${at.block} · ${size} + ${at.offset}`);
    }
    if (at.token !== null) {
      parts.push(" ", h("span", { class: "nve-token", text: visibleToken(tokenText(view.store.vocab, at.token)) }));
      if (at.block !== null) parts.push(h("small", { text: at.written ? " KV written" : at.computing ? " being computed" : " not computed yet" }));
    }
    out.replaceChildren(...parts);
  };
  let chosen = false;   // until a person asks for another, it is the newest computed token of the first live request
  for (const [control, type] of [[select, "change"], [input, "input"]]) {
    control.addEventListener(type, () => { chosen = true; show(); });
  }
  return {
    node,
    /** Keep the list of requests; show the given one, else stay. */
    update(ids, pick = null) {
      const listed = [...select.options].map((option) => option.value).join();
      if (listed !== ids.join()) {
        const before = select.value;
        select.replaceChildren(...ids.map((id) => h("option", { value: id, text: seqName(id) })));
        if (ids.includes(Number(before)) && before !== "") select.value = before;
      }
      if (pick) chosen = true;
      const at = pick ?? (chosen ? null : newestToken(view.state, ids));
      if (at) {
        select.value = String(at.seq);
        input.value = String(at.position);
      }
      show();
    },
  };
}

function createTables(view) {
  const { node } = panelFrame("tables", "Block tables", "logical → physical");
  const older = h("button", { class: "nve-more", type: "button" });
  const rows = h("div", { class: "nve-rows" });
  const empty = h("p", { class: "nve-hint", text: "No request yet. A request gets its row here when it is added." });
  const translator = createTranslator(view);
  node.append(older, empty, rows, translator.node);
  roving(rows, ".nve-cell");
  let unfolded = false;
  older.addEventListener("click", () => { unfolded = !unfolded; view.invalidate(); });
  const pick = (event) => {
    const cell = event.target.closest?.(".nve-cell");
    if (!cell) return;
    const seq = Number(cell.closest(".nve-row").dataset.seqId);
    const tick = event.target.closest("[data-position]");
    const position = tick ? Number(tick.dataset.position) : Number(cell.dataset.logical) * view.state.block_size;
    translator.update(seqIds(view.state), { seq, position });
  };
  rows.addEventListener("pointerover", pick);
  rows.addEventListener("focusin", pick);
  return {
    node,
    update() {
      const { state } = view;
      const ids = seqIds(state);
      const finished = ids.filter((id) => state.seqs[id].status === "FINISHED");
      const folded = new Set(unfolded ? [] : finished.slice(0, Math.max(0, finished.length - FINISHED_ROWS)));
      older.hidden = finished.length <= FINISHED_ROWS;
      setText(older, unfolded ? "Fold the older finished requests" : `Show ${count(folded.size, "older finished request")}`);
      setAttr(older, "aria-expanded", String(unfolded));
      empty.hidden = ids.length > 0;
      setAttr(rows, "role", ids.length ? "grid" : false);
      setAttr(rows, "aria-label", ids.length ? "Block tables; arrow keys move among the entries" : false);
      const entries = ids.reduce((n, id) => n + state.seqs[id].block_table.length, 0);
      const bar = state.block_size > 16 || entries > CELLS_WITH_TOKENS;
      const items = ids.filter((id) => !folded.has(id)).map((id) => tableRow(view, id, bar));
      setAttr(rows, "data-many", items.length > 24);
      syncList(rows, items, {
        key: (row) => row.id,
        create: (row) => h("div", { role: "row", "data-seq-id": row.id },
          h("span", { role: "rowheader", "data-nve-seq": row.id }), h("span", { class: "nve-table" }),
          h("span", { class: "nve-note", role: "gridcell" })),
        update: (line, row) => drawTableRow(view, line, row),
        sign: (row) => row.sign,
      });
      keepTabStop(rows, ".nve-cell");
      translator.update(ids);
    },
  };
}

/** All that a row shows, and a signature of it. */
function tableRow(view, id, bar) {
  const { state } = view;
  const seq = state.seqs[id];
  const how = acquisitions(view.store, id, seq.block_table.length, view.frame);
  const event = view.row?.e;
  const cells = seq.block_table.map((block, logical) => {
    const fill = fillOf(seq, logical, state.block_size);
    const released = view.released?.seq === id && logical >= view.released.logical;
    return {
      logical, block, fill, released, bar, cells: fillCells(fill, state.block_size),
      tag: cellTag(state.blocks[block].ref_count, how.get(logical)),
      now: view.refs.blocks.has(block) && event?.seq_id === id,
    };
  });
  const now = view.refs.seqs.has(id);
  const walk = view.walk?.seq === id && view.walk.current ? `${view.walk.end}${Boolean(view.walk.denied)}` : "";
  const sign = `${seq.status}${seq.is_prefill}${seq.token_ids.length}|${now}|${walk}|${lastCleared(view.store, id, view.frame)?.frame}|`
    + cells.map((c) => `${c.block}.${c.cells}.${c.tag}.${c.now}.${c.released}.${bar}`).join();
  return { id, seq, cells, now, sign };
}

// ─── panel_timeline.js ───────────────────────────────────────────────────────────────────────────────────
// The timeline: one column a step, one lane a request, the free-block curve below; a column leads to its step's end.

const COLUMN = 44;      // px a step
const CURVE = 30;       // px for the free-block curve
const FOOT = 18;        // px for the step's number
const FEW = 12;         // lanes up to here are high; more are low
const ALL_LANES = 24;   // requests up to here keep their lane for ever; of more only those alive in view have one
const SPARE = 6;        // columns drawn on either side of what can be seen

/** Which columns can be seen: [first, stop) of `total`, with some to spare. */
function columnsInView(scrollLeft, width, total, spare = SPARE) {
  const first = Math.max(0, Math.floor(scrollLeft / COLUMN) - spare);
  return [Math.min(first, total), Math.min(total, Math.ceil((scrollLeft + width) / COLUMN) + spare)];
}

/** The requests that have a lane, by id: all of a few, else those alive in the steps from `first` to `stop`. */
function lanesOf(lives, first, stop) {
  const all = [...lives.keys()].sort((a, b) => a - b);
  if (all.length <= ALL_LANES) return all;
  return all.filter((id) => lives.get(id).first < stop && lives.get(id).last >= first);
}

/** Where a prefill's bars stand in a column of `width` px: {hit: px, chunk: px}, `most` tokens filling all of it. */
function chunkWidths(did, most, width) {
  const unit = width / Math.max(1, most);
  const hit = did.hit ? Math.max(7, did.hit * unit) : 0;
  const chunk = did.tokens ? Math.max(5, did.tokens * unit) : 0;
  const shrink = Math.min(1, width / Math.max(1, hit + chunk));
  return { hit: hit * shrink, chunk: chunk * shrink };
}

/** What a step did, in words. */
function stepWords(step) {
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

function createTimeline(view) {
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

// ─── selection.js ────────────────────────────────────────────────────────────────────────────────────────
// One shared selection: a block or request that is hovered, focused or pinned lights up wherever it is shown.

const REFS = "[data-nve-block],[data-nve-seq]";

/** A reference as {block: [ids]} or {seq: [ids]}. An element may stand for several blocks (copies of one prefix). */
function refOf(node) {
  const element = node instanceof Element ? node.closest(REFS) : null;
  if (!element) return null;
  const ids = (value) => value.split(" ").filter(Boolean).map(Number);
  if (element.dataset.nveBlock) return { block: ids(element.dataset.nveBlock) };
  return element.dataset.nveSeq ? { seq: ids(element.dataset.nveSeq) } : null;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

class Selection {
  /** `owners()` gives block id → [{seq, logical}]; `onChange` is called when the selection is another one. */
  constructor(root, owners, onChange, signal) {
    this.root = root;
    this.owners = owners;
    this.hovered = this.focused = this.pinned = null;
    this.lit = [];
    const change = (slot, value) => {
      if (same(this[slot], value)) return;
      this[slot] = value;
      this.light();
      onChange();
    };
    const on = (type, handler) => root.addEventListener(type, handler, { signal });
    on("pointerover", (event) => change("hovered", refOf(event.target)));
    on("pointerleave", () => change("hovered", null));
    on("focusin", (event) => change("focused", refOf(event.target)));
    on("focusout", () => change("focused", null));
    on("click", (event) => {
      const ref = refOf(event.target);
      if (!ref || event.target.closest("button,input,select")) return;
      change("pinned", same(this.pinned, ref) ? null : ref);
    });
    on("keydown", (event) => {
      const ref = refOf(event.target);
      if (event.key === "Escape") change("pinned", null);
      else if (ref && (event.key === "Enter" || event.key === " ") && !event.target.closest("button,input,select")) {
        event.preventDefault();
        event.stopPropagation();
        change("pinned", same(this.pinned, ref) ? null : ref);
      }
    });
  }

  get current() {
    return this.hovered ?? this.focused ?? this.pinned;
  }

  /** The block that is selected, or null. */
  get block() {
    return this.current?.block?.[0] ?? null;
  }

  /** Mark all that shows the selection: a block with its holders' names, a request with its blocks. */
  light() {
    for (const node of this.lit) node.classList.remove("nve-lit", "nve-lit-soft");
    this.lit = [];
    const current = this.current;
    setDim(this.root, Boolean(current));
    if (!current) return;
    const mark = (selector, name) => {
      for (const node of this.root.querySelectorAll(selector)) {
        node.classList.add(name);
        this.lit.push(node);
      }
    };
    for (const id of current.block ?? []) {
      mark(`[data-nve-block~="${id}"]`, "nve-lit");
      for (const { seq } of this.owners().get(id) ?? []) mark(`.nve-chip[data-nve-seq~="${seq}"]`, "nve-lit-soft");
    }
    for (const id of current.seq ?? []) {
      mark(`[data-nve-seq~="${id}"]`, "nve-lit");
      for (const [block, holders] of this.owners()) {
        if (holders.some((holder) => holder.seq === id)) mark(`.nve-blk[data-nve-block="${block}"]`, "nve-lit-soft");
      }
    }
  }
}

function setDim(root, on) {
  root.classList.toggle("nve-selecting", on);
}

// ─── theme.js ────────────────────────────────────────────────────────────────────────────────────────────
// Light or dark, as the page around the view is: JupyterLab says so on the body, VS Code by a class, else the system.

/** Whether a page is dark. `prefers-color-scheme` counts only where no host says anything: it is wrong in JupyterLab. */
function isDark(body, systemIsDark) {
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.classList.contains("vscode-dark") || body.classList.contains("vscode-high-contrast")) return true;
  if (body.classList.contains("vscode-light")) return false;
  return systemIsDark;
}

/** Keep `data-theme` of the root right until the signal aborts. */
function watchTheme(root, signal) {
  const { body } = document;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { root.dataset.theme = isDark(body, system.matches) ? "dark" : "light"; };
  const observer = new MutationObserver(apply);
  observer.observe(body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  system.addEventListener("change", apply, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
  apply();
}

// ─── room.js ─────────────────────────────────────────────────────────────────────────────────────────────
// The control room: puts the panels together, owns the view's place in time, and redraws at most once a frame.

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
