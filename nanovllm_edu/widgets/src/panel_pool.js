// The pool: one tile a physical block, at the place of its id for ever.
import { faceAndWords, h, keepTabStop, panelFrame, roving, setAttr, syncList } from "./dom.js";
import { blockState, blockTokens, fillCells, fillOf, isMapped } from "./ledger.js";
import { count, hueClass, previewTokens, seqName, shortHash } from "./names.js";
import { blockTag, cellBoxes, fillBar, hashTag, seqTag, swatch, tokenChips } from "./parts.js";

const LARGE = 160;    // up to here a tile shows its token cells, hash and holders
const MEDIUM = 512;   // up to here an id and a bar; above, a coloured square

/** What a tile shows, from the state alone. Cells: w, c, r, e as in `fillCells`; k for a cached block's tokens. */
export function poolBlock(state, id, holders = []) {
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

export function createPool(view) {
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

export function poolHint(state) {
  return `${count(state.num_blocks, "block")} of ${state.block_size} tokens`;
}
