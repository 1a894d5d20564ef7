// Timeline, code and law: what they read off the rows, at any frame, forward and back alike.
import assert from "node:assert/strict";
import test from "node:test";
import { codeOf, commonIndent } from "../../nanovllm_edu/widgets/src/panel_code.js";
import { verdictAt } from "../../nanovllm_edu/widgets/src/panel_invariants.js";
import { chunkWidths, columnsInView, lanesOf, stepWords } from "../../nanovllm_edu/widgets/src/panel_timeline.js";
import { RowStore } from "../../nanovllm_edu/widgets/src/store.js";
import { framesOf, open, small } from "./fixture.mjs";

const { rows } = small.chunk;

test("one column a step, ending at the step's last event, with the free blocks of that moment", () => {
  const { store, cursor } = open();
  const ends = framesOf((e) => e.kind === "StepEnded");
  assert.deepEqual(store.steps.map((step) => step.end), ends);
  assert.deepEqual(store.steps.map((step) => step.step), ends.map((_, i) => i + 1));
  for (const step of store.steps) {
    cursor.goto(step.end);
    assert.equal(step.free, cursor.state.queue.length, `step ${step.step}`);
    assert.ok(step.done && !step.failed);
  }
});

test("what each request did in a step is what the batch of that step says", () => {
  const { store } = open();
  const batches = rows.filter((row) => row.e.kind === "BatchScheduled").map((row) => row.e);
  assert.equal(store.steps.length, batches.length);
  store.steps.forEach((step, i) => {
    const ran = [...step.seqs].filter(([, did]) => did.tokens);
    assert.deepEqual(ran.map(([id]) => id).sort(), [...batches[i].seq_ids].sort());
    assert.equal(ran.reduce((n, [, did]) => n + did.tokens, 0), batches[i].num_tokens);
    assert.ok(ran.every(([, did]) => did.prefill === (batches[i].phase === "prefill")));
    assert.equal(step.phase, batches[i].phase);
  });
  const all = store.steps.flatMap((step) => [...step.seqs.values()]);
  const events = (kind) => rows.filter((row) => row.e.kind === kind).length;
  assert.equal(all.filter((did) => did.preempted).length, events("RequestPreempted"));
  assert.equal(all.filter((did) => did.finished).length, events("RequestFinished"));
  assert.equal(all.filter((did) => did.hit).length, events("PrefixReused"));
});

test("the step of a frame, by bisection", () => {
  const { store } = open();
  for (let frame = 0; frame <= rows.length; frame++) {
    const index = store.stepIndex(frame);
    assert.equal(index < 0 ? 0 : store.steps[index].step, frame ? rows[frame - 1].step : 0, `frame ${frame}`);
  }
});

test("rows in pieces make the same columns as all at once", () => {
  const { store } = open();
  const pieces = new RowStore(small.initial);
  for (let i = 0; i < rows.length; i += 7) pieces.add(i, rows.slice(i, i + 7));
  assert.deepEqual(pieces.steps, store.steps);
  assert.deepEqual(pieces.lives, store.lives);
});

test("a failed step says so, and brings back who had finished in it", () => {
  const store = new RowStore({ queue: [0, 1], seqs: {}, blocks: [] });
  const row = (kind, step, values = {}) => ({ e: { kind, ...values }, p: [], step, last: kind === "StepEnded" });
  store.add(0, [row("RequestAdded", 0, { seq_id: 0 }), row("StepBegan", 1), row("RequestFinished", 1, { seq_id: 0, reason: "eos" }),
    row("RequestRestored", 1, { seq_id: 0, num_tokens: 3 }), row("StepEnded", 1, { failed: true }), row("StepEnded", 2, { failed: true })]);
  assert.deepEqual(store.steps.map((step) => [step.step, step.end, step.failed]), [[1, 5, true], [2, 6, true]]);
  assert.deepEqual(store.lives.get(0), { first: 0, last: Infinity });
  assert.match(stepWords(store.steps[0]), /^step 1, failed: nothing; 2 blocks free$/);
});

test("a step in words", () => {
  const { store } = open();
  assert.equal(stepWords(store.steps[1]), "step 2, prefill: B prefill of 3 tokens after 16 found in the cache; C prefill of 5 tokens; "
    + `${store.steps[1].free} blocks free`);
  assert.match(stepWords(store.steps[8]), /B decode, finished \(length\).*D preempted/);
});

test("only columns in view are drawn, and of many requests only those alive there have a lane", () => {
  assert.deepEqual(columnsInView(0, 440, 1000, 0), [0, 10]);
  assert.deepEqual(columnsInView(4400, 440, 1000, 2), [98, 112]);
  assert.deepEqual(columnsInView(0, 440, 3), [0, 3]);
  const lives = new Map(Array.from({ length: 128 }, (_, i) => [i, { first: i, last: i + 4 }]));
  assert.deepEqual(lanesOf(lives, 10, 12), [6, 7, 8, 9, 10, 11]);
  assert.equal(lanesOf(new Map([...lives].slice(0, 24)), 100, 101).length, 24);
});

test("bars never leave their column and are never too small to see", () => {
  for (const [hit, tokens, most] of [[16, 3, 19], [0, 1, 5000], [4999, 1, 5000], [0, 64, 64]]) {
    const { hit: left, chunk } = chunkWidths({ hit, tokens }, most, 38);
    assert.ok(left + chunk <= 38.001 && chunk >= 4 && (left > 0) === (hit > 0), `${left} ${chunk}`);
  }
});

test("the code of a row: its line, or that the line isn't here", () => {
  const row = { e: { at: ["a.py", "f", 12] } };
  const source = { first_line: 10, lines: ["    def f():", "", "        return 1"] };
  assert.equal(codeOf(row, { "a.py:f": source }).source, source);
  assert.equal(codeOf({ e: { at: ["a.py", "f", 13] } }, { "a.py:f": source }).source, null);
  assert.equal(codeOf({ e: { at: ["a.py", "constructor", 12] } }, {}).source, null);
  assert.equal(codeOf({ e: { at: null } }, {}), null);
  assert.equal(codeOf(null, {}), null);
  assert.equal(commonIndent(source.lines), 4);
});

test("the verdict that counts is that of the last step's end", () => {
  const { cursor } = open();
  const ends = framesOf((e) => e.kind === "StepEnded");
  const broken = [["pool", "block 3 is neither free nor used: it is lost"]];
  const store = new RowStore(small.initial);
  store.add(0, rows.map((row, i) => (i + 1 === ends[4] ? { ...row, v: broken } : row)));
  for (const [frame, at, found, isOpen] of [[0, 0, [], false], [ends[4], ends[4], broken, false], [ends[4] + 2, ends[4], broken, true], [ends[5], ends[5], [], false]]) {
    cursor.goto(frame);
    const verdict = verdictAt(store, cursor.state, frame);
    assert.deepEqual([verdict.at, verdict.broken, verdict.open], [at, found, isOpen], `frame ${frame}`);
  }
});
