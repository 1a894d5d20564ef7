// Pieces that several panels share: request chips, hash swatches, sentences with ids that light up.
import { h } from "./dom.js";
import { hueClass, identicon, seqName, shortHash, tokenText, visibleToken } from "./names.js";

/** A request's letter in its colour. */
export function seqTag(seqId) {
  return h("b", { class: `nve-seq ${hueClass(seqId)}`, "data-nve-seq": seqId, text: seqName(seqId) });
}

/** A block's id, lit with the shared selection. */
export function blockTag(blockId) {
  return h("b", { class: "nve-blockid", "data-nve-block": blockId, text: `#${blockId}` });
}

/** The colour pattern of a hash. */
export function swatch(hash) {
  return h("span", { class: "nve-ident", "aria-hidden": "true" },
    ...identicon(hash).map((color) => h("i", { style: `background:${color}` })));
}

/** Pattern and first digits of a hash. */
export function hashTag(hash) {
  return h("span", { class: "nve-hash", title: hash }, swatch(hash), h("code", { text: shortHash(hash) }));
}

/** The nodes of a sentence's parts. */
export function sentenceNodes(parts) {
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
export function cellBoxes(cells, position = null) {
  return h("span", { class: `nve-cells${cells.length > 8 ? " nve-dense" : ""}`, style: `--n:${Math.min(cells.length, 8)}` },
    ...[...cells].map((c, i) => h("i", {
      class: `nve-c-${c}`, "data-position": position === null || c === "e" ? false : position + i,
    })));
}

/** Fill as a bar, where single tokens would be too small to see or too many to draw. */
export function fillBar(cells) {
  const share = (letter) => `${(100 * [...cells].filter((c) => c === letter).length) / cells.length}%`;
  return h("span", { class: "nve-fillbar" },
    ...["w", "k", "c", "r"].map((letter) => h("i", { class: `nve-c-${letter}`, style: `width:${share(letter)}` })));
}

/** A sentence's parts as plain text. */
export function sentenceText(parts) {
  return parts.map((part) => (typeof part === "string" ? part : part.text ?? part.code ?? part.b ?? "")).join("");
}

/** Tokens as chips; `cells` gives one letter each (w, c, r) for how far the model is with it. */
export function tokenChips(vocab, tokenIds, cells = "") {
  const states = { w: "KV written", c: "being computed in this step", r: "not computed yet" };
  return tokenIds.map((id, i) => h("span", {
    class: `nve-token nve-token-${cells[i] ?? "w"}`, text: visibleToken(tokenText(vocab, id)) || "∅",
    title: `token ${id}${cells[i] ? `: ${states[cells[i]]}` : ""}`,
  }));
}
