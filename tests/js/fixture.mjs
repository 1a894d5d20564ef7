// A recorded run of the real scheduler (tests/js/make_fixture.py), and a way to stand at a frame of it.
import { readFileSync } from "node:fs";
import { Cursor } from "../../nanovllm_edu/widgets/src/cursor.js";
import { RowStore } from "../../nanovllm_edu/widgets/src/store.js";

export const small = JSON.parse(readFileSync(new URL("../data/traces/small.json", import.meta.url), "utf8"));

export function open() {
  const store = new RowStore(small.initial);
  store.add(0, small.chunk.rows, small.chunk.vocab, small.chunk.total);
  return { store, cursor: new Cursor(store) };
}

/** Frames right after events for which the test holds. */
export function framesOf(test) {
  return small.chunk.rows.flatMap((row, i) => (test(row.e) ? [i + 1] : []));
}
