// Block tables: one row a request, logical → physical, and the address translator.
import { faceAndWords, h, keepTabStop, panelFrame, roving, setAttr, setText, syncList } from "./dom.js";
import { fillCells, fillOf, seqIds, translate } from "./ledger.js";
import { count, hueClass, seqName, tokenText, visibleToken } from "./names.js";
import { blockTag, cellBoxes, fillBar } from "./parts.js";
import { acquisitions, finishReason, lastCleared } from "./story.js";

const CELLS_WITH_TOKENS = 400;   // with more table entries than this, a bar stands for an entry's tokens
const FINISHED_ROWS = 8;   // older finished requests fold away behind a button

/** A request's condition in a word or two. */
export function condition(seq) {
  if (seq.status === "FINISHED") return "finished";
  if (seq.status === "WAITING" && !seq.block_table.length) return seq.num_preemptions ? "preempted" : "waiting";
  if (seq.status === "WAITING") return "prefill";
  return seq.is_prefill ? "prefill" : "decode";
}

/** The tag in a cell: how the entry came to the table, and whether the block is shared now. */
export function cellTag(refCount, how) {
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
export function newestToken(state, ids) {
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

export function createTables(view) {
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
