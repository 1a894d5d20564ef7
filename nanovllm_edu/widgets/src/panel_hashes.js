// Hash chains as a tree that grows downwards: a shared prefix is one spine until it forks. Beside it the lookup walk.
import { h, panelFrame, setAttr, setText, svg, syncList } from "./dom.js";
import { count, hueClass, previewTokens, seqName, shortHash } from "./names.js";
import { blockTag, hashTag, seqTag, swatch } from "./parts.js";
import { chainNodes, chainRows } from "./story.js";

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

export function createHashes(view) {
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
