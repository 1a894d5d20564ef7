// The row store and its model: pieces in and out of order, what is missing is asked for once, nothing stays connected.
import assert from "node:assert/strict";
import test from "node:test";
import { Cursor } from "../../nanovllm_edu/widgets/src/cursor.js";
import { connectStore } from "../../nanovllm_edu/widgets/src/store.js";
import { FakeModel } from "./dev/fake_model.js";
import { small } from "./fixture.mjs";

const { rows, vocab } = small.chunk;
const piece = (start, stop, total = stop) => ({ start, total, rows: rows.slice(start, stop), vocab });

function connect(chunk) {
  const model = new FakeModel({ initial: small.initial, chunk });
  const controller = new AbortController();
  return { model, controller, store: connectStore(model, controller.signal) };
}

test("chunks that follow on each other are taken, overlaps are passed over", () => {
  const { model, store } = connect(piece(0, 10));
  let calls = 0;
  store.listeners.add(() => calls++);
  model.assign("chunk", piece(5, 20));
  model.assign("chunk", piece(20, 30));
  model.assign("chunk", piece(20, 30));
  assert.deepEqual(store.rows, rows.slice(0, 30));
  assert.equal(calls, 3);
  assert.deepEqual(model.sent, []);
  assert.equal(store.vocab.size, Object.keys(vocab).length);
});

test("a view that comes late asks once for what it lacks", () => {
  const { model, store } = connect(piece(100, 120));
  model.assign("chunk", piece(120, 140));
  assert.deepEqual(model.sent, [{ action: "resync", have: 0 }]);
  assert.equal(store.rows.length, 0);
  model.emit("msg:custom", { type: "rows", ...piece(0, 70, 120) });
  model.emit("msg:custom", { type: "rows", ...piece(70, 120, 120) });
  assert.deepEqual(store.rows, rows.slice(0, 140), "and takes up what came meanwhile");
  assert.equal(model.sent.length, 1);
});

test("a lost chunk in the middle is asked for", () => {
  const { model, store } = connect(piece(0, 10));
  model.assign("chunk", piece(15, 20));
  assert.deepEqual(model.sent, [{ action: "resync", have: 10 }]);
  model.emit("msg:custom", { type: "rows", ...piece(10, 20, 20) });
  assert.equal(store.rows.length, 20);
});

test("foreign messages are not rows", () => {
  const { model, store } = connect(piece(0, 10));
  model.emit("msg:custom", { type: "other" });
  model.emit("msg:custom", null);
  model.assign("chunk", {});
  assert.equal(store.rows.length, 10);
});

test("a new start empties the store and every cursor goes back to it", () => {
  const { model, store } = connect(piece(0, 50));
  const cursor = new Cursor(store);
  cursor.goto(50);
  model.values.chunk = piece(0, 5);
  model.assign("initial", structuredClone(small.initial));
  assert.equal(store.rows.length, 5);
  cursor.goto(99);
  assert.equal(cursor.frame, 5);
});

test("two views of one model move by themselves over the same rows", () => {
  const { store } = connect(piece(0, rows.length));
  const [a, b] = [new Cursor(store), new Cursor(store)];
  a.goto(300);
  b.goto(10);
  const there = structuredClone(b.state);
  a.goto(0);
  assert.deepEqual(b.state, there);
  assert.equal(a.store.rows, b.store.rows);
});

test("nothing stays connected to the model", () => {
  const { model, controller } = connect(piece(0, 10));
  assert.equal(model.listeners, 3);
  controller.abort();
  assert.equal(model.listeners, 0);
});
