// Names, colours and short forms: how ids, hashes and tokens look everywhere in the view.

/** How many colours requests cycle through; the letter tells requests of one colour apart. */
export const NUM_HUES = 7;

/** Request name: seq_id 0 → A, 25 → Z, 26 → AA (the same rule as `nanovllm_edu.render.seq_name`). */
export function seqName(seqId) {
  let name = "";
  for (let n = Number(seqId); n >= 0; n = Math.floor(n / 26) - 1) name = String.fromCharCode(65 + (n % 26)) + name;
  return name;
}

/** The colour class of a request. */
export function hueClass(seqId) {
  return `nve-h${Number(seqId) % NUM_HUES}`;
}

/** The first 4 of a hash's 16 hex digits. */
export function shortHash(hash) {
  return hash.slice(0, 4);
}

/** Six colours for a hash, drawn as 3 × 2 squares (as in the still pictures); the digits beside them say the rest. */
export function identicon(hash) {
  return [0, 1, 2, 3, 0, 2].map((k, i) => `hsl(${parseInt(hash[k], 16) * 24} 55% ${i % 2 ? 45 : 62}%)`);
}

/** A token as readable text: white space and control characters become visible signs. */
export function visibleToken(text) {
  return text
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/^ /, "·")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "␦");
}

/** The text of a token; an id without a text (a model-less engine) stands for itself. */
export function tokenText(vocab, tokenId) {
  const text = vocab.get(String(tokenId));
  return text === undefined ? `⟨${tokenId}⟩` : text;
}

/** Tokens as running text on one line, cut to `limit` characters. */
export function previewTokens(vocab, tokenIds, limit = 60) {
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
export function count(n, noun) {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}
