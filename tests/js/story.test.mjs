// What the panels tell: lookups, chains, queue, names, marks.
import assert from "node:assert/strict";
import test from "node:test";
import { eventPlace, scrubMarks } from "../../nanovllm_edu/widgets/src/bar.js";
import { identicon, previewTokens, seqName, visibleToken } from "../../nanovllm_edu/widgets/src/names.js";
import { turns } from "../../nanovllm_edu/widgets/src/panel_chat.js";
import { poolBlock } from "../../nanovllm_edu/widgets/src/panel_pool.js";
import { queueItems } from "../../nanovllm_edu/widgets/src/panel_queue.js";
import { lanes } from "../../nanovllm_edu/widgets/src/panel_sequences.js";
import { cellTag, condition, newestToken } from "../../nanovllm_edu/widgets/src/panel_tables.js";
import { sentenceText } from "../../nanovllm_edu/widgets/src/parts.js";
import { countUpTo, RowStore } from "../../nanovllm_edu/widgets/src/store.js";
import { acquisitions, chainNodes, chainRows, eventRefs, kpis, lookupWalk } from "../../nanovllm_edu/widgets/src/story.js";
import { isDark } from "../../nanovllm_edu/widgets/src/theme.js";
import { framesOf, open, small } from "./fixture.mjs";

test("request names count on after Z", () => {
  assert.deepEqual([0, 1, 25, 26, 27, 51, 52, 701, 702].map(seqName), ["A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA"]);
});

test("tokens are shown with their white space, and nothing that turns the text around", () => {
  assert.equal(visibleToken(" a\n"), "·a⏎");
  assert.equal(visibleToken("\u202ea\u0007"), "␦a␦");
  assert.equal(previewTokens(new Map([["1", "Hello"], ["2", " world"]]), [1, 2, 3]), "Hello world ⟨3⟩");
  assert.equal(identicon("0878a1b2c3d4e5f6").length, 6);
});

test("a lookup walk goes along the prompt and stops with its reason", () => {
  const { store } = open();
  const stops = framesOf((e) => e.kind === "PrefixLookup" && !e.outcome.startsWith("hit"));
  assert.ok(stops.length > 5);
  for (const frame of stops) {
    const event = small.chunk.rows[frame - 1].e;
    const walk = lookupWalk(store, frame);
    assert.equal(walk.seq, event.seq_id);
    assert.deepEqual(walk.lookups.map((l) => l.logical), [...Array(event.logical + 1).keys()]);
    assert.equal(walk.end, event.outcome);
    assert.ok(walk.lookups.slice(0, -1).every((l) => l.outcome.startsWith("hit")));
    assert.equal(walk.current, true);
  }
  assert.equal(lookupWalk(store, 0), null);
  const [denied] = framesOf((e) => e.kind === "AllocationDenied");
  assert.equal(lookupWalk(store, denied).denied.num_needed_blocks, small.chunk.rows[denied - 1].e.num_needed_blocks);
});

test("two lookups of one waiting request in a row are two walks", () => {
  const store = new RowStore(small.initial);
  const look = (logical, outcome) => ({ e: { kind: "PrefixLookup", seq_id: 0, logical, outcome, hash: "", parent_hash: "", token_ids: [] }, p: [], step: 1 });
  store.add(0, [look(0, "hit_used"), look(1, "miss"), look(0, "hit_used"), look(1, "hit_free")]);
  assert.deepEqual(lookupWalk(store, 4).lookups.map((l) => l.outcome), ["hit_used", "hit_free"]);
  assert.deepEqual(lookupWalk(store, 3).lookups.length, 1);
});

test("chains: every mapped block stands below its parent, a shared prefix stands once", () => {
  const { store, cursor } = open();
  let forks = 0;
  for (let frame = 0; frame <= cursor.end; frame += 3) {
    cursor.goto(frame);
    const nodes = chainNodes(cursor.state, store, lookupWalk(store, frame));
    const { rows, hidden } = chainRows(nodes);
    assert.equal(hidden, 0);
    assert.equal(new Set(rows.map((r) => r.node.key)).size, nodes.size, `frame ${frame}`);
    assert.equal(rows.length, nodes.size);
    for (const hash of Object.keys(cursor.state.map)) assert.ok(nodes.get(hash).blocks.includes(cursor.state.map[hash]));
    for (const row of rows) {
      if (!row.parent) {
        assert.equal(row.node.parent, "");
        continue;
      }
      assert.equal(row.parent.node.key, row.node.parent);
      assert.ok(row.parent.index < row.index);
      assert.equal(row.lane, row.parent.lane + (row.parent.node.children.length > 1 ? 1 : 0));
    }
    for (const id of [...cursor.state.running]) {
      const hashed = cursor.state.seqs[id].block_table.filter((b) => cursor.state.blocks[b].hash).length;
      assert.equal([...nodes.values()].filter((n) => n.kind === "block" && n.seqs.includes(id)).length, hashed);
    }
    forks += rows.some((r) => r.parent && r.parent.node.seqs.length > 1 && r.parent.node.children.length > 1);
  }
  assert.ok(forks > 10, "requests that share a prefix fork somewhere in the run");
});

test("a chain of thousands of blocks is laid out, and cut where the panel would drown", () => {
  const nodes = new Map();
  for (let i = 0; i < 5000; i++) nodes.set(`h${i}`, { key: `h${i}`, parent: i ? `h${i - 1}` : "", seen: i, seqs: [], blocks: [i], copies: [] });
  const { rows, hidden } = chainRows(nodes, 200);
  assert.equal(rows.length, 200);
  assert.equal(hidden, 4800);
  assert.ok(rows.every((row) => row.lane === 0));
});

test("an evicted ancestor shows as a gap, not as a new root", () => {
  const { store, cursor } = open();
  cursor.goto(cursor.end);
  const state = structuredClone(cursor.state);
  const child = Object.keys(state.map).find((hash) => state.map[store.links.get(hash).parent] !== undefined);
  const { parent } = store.links.get(child);
  delete state.map[parent];
  const nodes = chainNodes(state, store, null);
  assert.equal(nodes.get(parent).kind, "gone");
  assert.equal(nodes.get(child).parent, parent);
});

test("the queue keeps its order and shows the gap where a block was lifted out", () => {
  const { cursor } = open();
  for (const frame of framesOf((e) => e.kind === "BlockRevived" || e.kind === "BlockTaken")) {
    cursor.goto(frame);
    const event = cursor.row.e;
    const items = queueItems(cursor.state, event);
    assert.deepEqual(items.filter((i) => !i.gap).map((i) => i.id), cursor.state.queue);
    const gap = items.findIndex((i) => i.gap);
    assert.equal(items[gap].id, event.block_id);
    assert.equal(items[gap - 1]?.id ?? null, event.kind === "BlockTaken" ? null : event.queue_prev);
    if (event.kind === "BlockRevived") assert.equal(items[gap + 1]?.id ?? null, event.queue_next);
  }
});

test("how entries came to a table", () => {
  const { store, cursor } = open();
  const [revived] = framesOf((e) => e.kind === "BlockRevived");
  cursor.goto(revived);
  const { seq_id: seq, logical } = cursor.row.e;
  const how = acquisitions(store, seq, cursor.state.seqs[seq].block_table.length, revived);
  assert.equal(how.get(logical), "BlockRevived");
  assert.equal(how.get(0), "BlockShared");
  assert.deepEqual([cellTag(1, "BlockRevived"), cellTag(2, "BlockRevived"), cellTag(2, "BlockTaken"), cellTag(1, "BlockShared"), cellTag(1, "BlockTaken")],
    ["revived", "shared", "shared", "hit", ""]);
});

test("pool tiles: a registered block is full, a cached one grey, a free one empty", () => {
  const block = (extra) => ({ ref_count: 0, hash: "", token_ids: [], ...extra });
  const state = {
    block_size: 4, map: { aa: 0, bb: 1 }, seqs: { 0: { token_ids: [1, 2, 3, 4, 5, 6], num_cached_tokens: 5, num_scheduled_tokens: 1, block_table: [1, 2] } },
    blocks: [block({ hash: "aa", token_ids: [1, 2, 3, 4] }), block({ hash: "bb", ref_count: 1 }), block({ ref_count: 1 }), block({ hash: "aa" })],
  };
  const cells = (id, holders) => poolBlock(state, id, holders).cells;
  assert.equal(cells(0), "kkkk");
  assert.equal(cells(1, [{ seq: 0, logical: 0 }]), "wwww");
  assert.equal(cells(2, [{ seq: 0, logical: 1 }]), "wcee");
  assert.equal(cells(3), "eeee");
  assert.equal(poolBlock(state, 3).mapped, false);
});

test("lanes are in queue order, conditions in words", () => {
  const { cursor } = open();
  const [preempted] = framesOf((e) => e.kind === "RequestPreempted");
  cursor.goto(preempted);
  assert.equal(lanes(cursor.state).WAITING[0], cursor.row.e.seq_id);
  assert.deepEqual(lanes(cursor.state).RUNNING, cursor.state.running);
  cursor.goto(cursor.end);
  assert.equal(condition(cursor.state.seqs[0]), "finished");
  assert.equal(lanes(cursor.state).FINISHED.length, Object.keys(cursor.state.seqs).length);
});

test("the chat streams: text grows with the frame and shrinks on the way back", () => {
  const { store, cursor } = open();
  const at = framesOf((e) => e.kind === "TokenAppended" && e.seq_id === 0);
  cursor.goto(at[2]);
  const chat = [{ seq_id: 0, text: "What is the capital of France?", raw: false, turn: 1 }];
  const [first] = turns(cursor.state, store, chat, at[2]);
  assert.equal(first.reply, " The capital of");
  assert.equal(first.prompt, chat[0].text);
  cursor.goto(at[0] - 1);
  assert.equal(turns(cursor.state, store, chat, at[0] - 1)[0].reply, "");
});

test("text that a failed step took back is gone again, also a token that was never told", () => {
  const store = new RowStore(small.initial);
  const append = (t, length) => ({ e: { kind: "TokenAppended", seq_id: 0, token_id: 1, num_tokens_after: length }, p: [], step: 1, t });
  const restored = (length) => ({ e: { kind: "RequestRestored", seq_id: 0, num_tokens: length, removed_token_ids: [1] }, p: [], step: 1 });
  store.add(0, [append("a", 8), append("b", 9), restored(8), append("c", 9), restored(9)]);
  assert.deepEqual([0, 1, 2, 3, 4, 5].map((frame) => store.textOf(0, frame)), ["", "a", "ab", "a", "ac", "ac"]);
});

test("figures, references and places of events", () => {
  const { store, cursor } = open();
  cursor.goto(cursor.end);
  const lookups = framesOf((e) => e.kind === "PrefixLookup" && e.outcome !== "last_block").length;
  const k = kpis(cursor.state, store, cursor.end);
  assert.equal(k.queries, lookups);
  assert.equal(k.free, cursor.state.queue.length);
  assert.equal(kpis(cursor.state, store, 0).queries, 0);
  assert.deepEqual([countUpTo([1, 5, 5, 9], 0), countUpTo([1, 5, 5, 9], 5), countUpTo([1, 5, 5, 9], 99)], [0, 3, 4]);
  const refs = eventRefs({ e: { kind: "RequestPreempted", seq_id: 2, for_seq_id: 0, block_id: null } });
  assert.deepEqual([[...refs.seqs], [...refs.blocks]], [[2, 0], []]);
  assert.equal(eventPlace({ step: 7, e: { kind: "BlockShared", seq_id: 1, at: ["block_manager.py", "BlockManager.allocate", 3] } }), "step 7 · allocate(B)");
  assert.equal(eventPlace(null), "start");
  assert.equal(sentenceText(["Request ", { seq: 1, text: "B" }, " takes ", { block: 3, text: "#3" }, " ", { code: "ref_count 0 → 1" }]), "Request B takes #3 ref_count 0 → 1");
});

test("marks of a long run stay few", () => {
  const frames = Array.from({ length: 20000 }, (_, i) => i + 1);
  const marks = scrubMarks({ preemption: [500], hit: frames, eviction: [] }, 20000);
  assert.ok(marks.length <= 202);
  assert.deepEqual(marks.find((m) => m.kind === "preemption"), { kind: "preemption", share: 0.025 });
});

test("dark or light is what the page says, the system only where it says nothing", () => {
  const body = (light, ...classes) => ({ dataset: light === undefined ? {} : { jpThemeLight: light }, classList: { contains: (c) => classes.includes(c) } });
  assert.equal(isDark(body("false"), false), true);
  assert.equal(isDark(body("true"), true), false);
  assert.equal(isDark(body(undefined, "vscode-dark"), false), true);
  assert.equal(isDark(body(undefined, "vscode-light"), true), false);
  assert.equal(isDark(body(undefined), true), true);
});

test("the address translator begins with the newest computed token of a request that holds blocks", () => {
  const seq = (table, cached) => ({ block_table: table, num_cached_tokens: cached });
  assert.deepEqual(newestToken({ seqs: { 0: seq([], 0), 1: seq([3, 1], 7), 2: seq([4], 2) } }, [0, 1, 2]), { seq: 1, position: 6 });
  assert.deepEqual(newestToken({ seqs: { 0: seq([], 0) } }, [0]), { seq: 0, position: 0 });
  assert.equal(newestToken({ seqs: {} }, []), null);
});
