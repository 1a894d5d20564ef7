// Patches, time and what a state says: held against walks of the real scheduler's objects.
import assert from "node:assert/strict";
import test from "node:test";
import {
  applyPatches, blockState, blockTokens, fillCells, fillOf, ownersOf, releasing, revertPatches, reversePatch, translate,
} from "../../nanovllm_edu/widgets/src/ledger.js";
import { framesOf, open, small } from "./fixture.mjs";

const { rows } = small.chunk;

test("patches lead to every state that the scheduler's objects had", () => {
  const { cursor } = open();
  assert.ok(Object.keys(small.states).length > 20);
  for (const [frame, state] of Object.entries(small.states)) {
    cursor.goto(Number(frame));
    const { seqs } = cursor.state;
    const live = Object.fromEntries(Object.entries(seqs).filter(([, seq]) => seq.status !== "FINISHED"));   // the scheduler forgets the others
    assert.deepEqual({ ...cursor.state, seqs: live }, state, `frame ${frame}`);
  }
});

test("undoing each event restores the state before it, down to the start", () => {
  const state = structuredClone(small.initial);
  const before = rows.map((row) => {
    const copy = structuredClone(state);
    applyPatches(state, row.p);
    return copy;
  });
  for (let i = rows.length - 1; i >= 0; i--) {
    revertPatches(state, rows[i].p);
    assert.deepEqual(state, before[i], `event ${i + 1}, ${rows[i].e.kind}`);
  }
});

test("rows are never changed by walking over them", () => {
  const text = JSON.stringify(rows);
  const { cursor } = open();
  for (const frame of [rows.length, 0, 200, 10, rows.length]) cursor.goto(frame);
  assert.equal(JSON.stringify(rows), text);
});

test("each kind of patch and its reverse", () => {
  for (const [patch, before, after] of [
    [["set", ["x"], 1, 2], { x: 1 }, { x: 2 }], [["set", ["x"], null, { a: [] }], {}, { x: { a: [] } }],
    [["set", ["x"], 3, null], { x: 3 }, {}], [["set", ["l", 1], 5, 6], { l: [4, 5] }, { l: [4, 6] }],
    [["link", ["l"], 9, null], { l: [1] }, { l: [9, 1] }], [["link", ["l"], 9, 1], { l: [1, 2] }, { l: [1, 9, 2] }],
    [["unlink", ["l"], 9, 2], { l: [2, 9] }, { l: [2] }], [["push", ["l"], 7], { l: [] }, { l: [7] }],
    [["pop", ["l"], 7], { l: [1, 7] }, { l: [1] }],
  ]) {
    const state = structuredClone(before);
    applyPatches(state, [patch]);
    assert.deepEqual(state, after, JSON.stringify(patch));
    applyPatches(state, [reversePatch(patch)]);
    assert.deepEqual(state, before, `${JSON.stringify(patch)} undone`);
  }
});

test("a patch that does not fit says so", () => {
  for (const patch of [["unlink", ["l"], 9, null], ["link", ["l"], 1, 9], ["pop", ["l"], 9], ["jump", ["l"], 1], ["push", ["no"], 1]]) {
    assert.throws(() => applyPatches({ l: [1] }, [patch]), /does not fit/, JSON.stringify(patch));
  }
});

test("steps forward and back stop at the last event of a step", () => {
  const { cursor } = open();
  const ends = [0, ...framesOf((e) => e.kind === "StepEnded")];
  assert.ok(rows.every((row, i) => Boolean(row.last) === (row.e.kind === "StepEnded") && row.step >= (rows[i - 1]?.step ?? 0)));
  for (const end of ends.slice(1)) {
    cursor.goto(cursor.stepTarget(1));
    assert.equal(cursor.frame, end);
  }
  cursor.goto(ends[5] + 3);
  cursor.goto(cursor.stepTarget(-1));
  assert.equal(cursor.frame, ends[5]);
  cursor.goto(3);
  assert.equal(cursor.stepTarget(-1), 0);
  cursor.goto(9e9);
  assert.equal(cursor.frame, rows.length);
});

test("block states and holders agree with the ledger's counts outside of a release", () => {
  const { store, cursor } = open();
  for (let frame = 0; frame <= rows.length; frame++) {
    cursor.goto(frame);
    const { state } = cursor;
    const owners = ownersOf(state, releasing(store.rows, frame));
    state.blocks.forEach((block, id) => {
      assert.equal(owners.get(id)?.length ?? 0, block.ref_count, `frame ${frame}, block ${id}, ${cursor.row?.e.kind}`);
      const expected = block.ref_count ? "used" : block.hash && state.map[block.hash] === id ? "cached" : "free";
      assert.equal(blockState(state, id), expected);
      if (block.ref_count) assert.ok(blockTokens(state, id, owners).length > 0);
    });
  }
});

test("a table entry's tokens: written, being computed, known only", () => {
  const seq = { token_ids: [...Array(10).keys()], num_cached_tokens: 5, num_scheduled_tokens: 4 };
  assert.deepEqual(fillOf(seq, 0, 4), { written: 4, computing: 0, reserved: 0, total: 4 });
  assert.deepEqual(fillOf(seq, 1, 4), { written: 1, computing: 3, reserved: 0, total: 4 });
  assert.deepEqual(fillOf(seq, 2, 4), { written: 0, computing: 1, reserved: 1, total: 2 });
  assert.equal(fillCells(fillOf(seq, 2, 4), 4), "cree");
});

test("a position's address is what the block table says", () => {
  const state = { block_size: 4, seqs: { 0: { token_ids: [5, 6, 7, 8, 9, 10, 11, 12, 13, 14], num_cached_tokens: 9, num_scheduled_tokens: 1, block_table: [3, 1, 9] } } };
  const at = translate(state, 0, 9);
  assert.deepEqual([at.logical, at.offset, at.block, at.slot, at.token, at.written, at.computing], [2, 1, 9, 37, 14, false, true]);
  assert.equal(translate(state, 0, 12).block, null);
  assert.equal(translate(state, 0, 10).token, null);
});
