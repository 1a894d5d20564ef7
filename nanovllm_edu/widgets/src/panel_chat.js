// The conversation: what was asked, the text that came out up to this frame, and the line to type the next prompt in.
import { h, panelFrame, setAttr, setText, syncList } from "./dom.js";
import { seqIds } from "./ledger.js";
import { count, hueClass, seqName, tokenText } from "./names.js";

const TURNS_SHOWN = 60;
const PROMPT_SHOWN = 1200;   // characters of a prompt that did not come from here

/** What to show of each request at this frame, oldest first. */
export function turns(state, store, chat, frame) {
  const typed = new Map((chat ?? []).map((entry) => [entry.seq_id, entry]));
  return seqIds(state).slice(-TURNS_SHOWN).map((id) => {
    const seq = state.seqs[id];
    const entry = typed.get(id);
    const prompt = entry ? entry.text
      : seq.token_ids.slice(0, seq.num_prompt_tokens).map((t) => tokenText(store.vocab, t)).join("").slice(0, PROMPT_SHOWN);
    return {
      id, prompt, typed: Boolean(entry), raw: Boolean(entry?.raw), turn: entry?.turn ?? 0, reply: store.textOf(id, frame),
      status: seq.status, reason: seq.finish_reason,
    };
  });
}

function drawTurn(view, node, turn) {
  node.className = `nve-turn ${hueClass(turn.id)}${turn.now ? " nve-now" : ""}`;
  setAttr(node, "data-nve-seq", turn.id);
  const kind = turn.typed ? (turn.raw ? "raw prompt" : turn.turn > 1 ? `turn ${turn.turn}` : "") : "prompt";
  node.replaceChildren(h("b", { class: "nve-name", text: seqName(turn.id) }),
    h("div", {},
      h("p", { class: turn.typed ? "nve-asked" : "nve-asked nve-prompt" }, kind ? h("small", { text: kind }) : "", turn.prompt),
      h("p", { class: "nve-reply" }, turn.reply.trimStart() || h("span", { class: "nve-hint", text: turn.status === "WAITING" ? "waiting for its turn" : "…" }),
        turn.status === "RUNNING" ? h("span", { class: "nve-caret", "aria-hidden": "true" }) : "",
        turn.status === "FINISHED" ? h("small", { text: ` ${turn.reason}` }) : "")));
}

export function createChat(view) {
  const { node } = panelFrame("chat", "Chat", view.live ? "type, and watch it enter" : "what was asked and answered");
  const list = h("div", { class: "nve-turns", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Conversation" });
  const empty = h("p", { class: "nve-hint", text: "Nothing was asked yet." });
  node.append(list, empty);
  let form = null;
  if (view.live) {
    const prompt = h("input", { type: "text", "data-input": "prompt", "aria-label": "Prompt", placeholder: "Type a prompt, then Enter", autocomplete: "off", spellcheck: "false" });
    const max = h("input", { type: "number", "data-input": "max-tokens", min: "1", value: "24", "aria-label": "Most tokens to generate" });
    const raw = h("input", { type: "checkbox", "data-input": "raw" });
    const submit = h("button", { class: "nve-go", type: "submit", "data-action": "submit", text: "Submit" });
    form = h("form", { class: "nve-form" }, h("div", { class: "nve-ask" }, prompt, submit),
      h("div", { class: "nve-options" }, h("label", {}, "at most ", max, " tokens"),
        h("label", { title: "On: the text goes to the model as it is, without the chat template and the conversation so far" }, raw, " raw, without the chat template")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      view.command({ action: "submit", prompt: prompt.value, raw: raw.checked, max_tokens: Math.trunc(Number(max.value)) });
      prompt.value = "";
      prompt.focus();
    });
    node.append(form);
  }
  let atEnd = true;
  let shown = "";
  list.addEventListener("scroll", () => { atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 24; });
  return {
    node,
    update() {
      const items = turns(view.state, view.store, view.status.chat, view.frame);
      for (const turn of items) turn.now = view.refs.seqs.has(turn.id) && view.row?.e.kind === "TokenAppended";
      syncList(list, items, {
        key: (turn) => turn.id, create: () => h("div"), update: (line, turn) => drawTurn(view, line, turn),
        sign: (turn) => JSON.stringify(turn),
      });
      empty.hidden = items.length > 0;
      list.hidden = !items.length;
      setText(empty, `Nothing was asked yet.${view.live ? " A request that is added in a cell shows here too." : ""}`);
      const sign = items.map((turn) => `${turn.id}.${turn.reply.length}.${turn.status}`).join();
      if (atEnd && sign !== shown) list.scrollTop = list.scrollHeight;
      shown = sign;
      if (form) for (const control of form.elements) control.disabled = view.status.state === "closed";
      setAttr(list, "data-turns", count(items.length, "turn"));
    },
  };
}
