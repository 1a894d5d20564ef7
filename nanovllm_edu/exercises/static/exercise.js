// The form of one exercise. Python judges; this draws `view` and sends what the learner did.
// All text goes through textContent: a token or an error message is never markup.

/** @typedef {{key: string, serial: number, id: string, title: string, kind: string, how: string, unit: string,
 *   paragraphs: string[], figure: {label: string, empty: string, chips: string[][]}[], items: number[],
 *   options: string[][], answer: any, outcome: string, lines: string[], hints: string[], hints_left: number,
 *   attempts: number, solved: boolean, revealed: boolean, may_reveal: boolean}} View */

const SILENCE_MS = 5000; // after this long without an answer, the kernel is taken for dead

/** One element with attributes, listeners ("onclick") and children. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}

/** The list with the entry at `from` moved to `to`; unchanged when `to` lies outside. */
export function moved(list, from, to) {
  if (to < 0 || to >= list.length) return list;
  const copy = [...list];
  copy.splice(to, 0, ...copy.splice(from, 1));
  return copy;
}

function figure(view) {
  if (!view.figure.length) return null;
  return h("div", { class: "nve-ex-figure" }, view.figure.map((row) => [
    h("div", { class: "nve-ex-label" }, row.label),
    h("div", { class: "nve-ex-row" }, row.chips.length
      ? row.chips.map(([text, note]) => h("span", { class: "nve-ex-block" }, text, note ? h("small", {}, note) : null))
      : h("i", {}, row.empty)),
  ]));
}

/** Forms by kind: each returns {element, value(), focus()}. */
const FORMS = {
  numeric(view, submit) {
    const input = h("input", {
      type: "text", inputmode: "numeric", autocomplete: "off", "data-input": "answer",
      "aria-label": `your answer, ${view.how}`, onkeydown: (event) => event.key === "Enter" && submit(),
    });
    input.value = view.answer ?? "";
    return { element: h("label", { class: "nve-ex-number" }, input, ` ${view.unit}`), value: () => input.value };
  },

  choice(view, submit) {
    const name = `nve-${Math.random().toString(36).slice(2)}`;
    const radios = view.options.map(([key]) => {
      const radio = h("input", {
        type: "radio", name, value: key, "data-option": key,
        onkeydown: (event) => event.key === "Enter" && submit(),
      });
      radio.checked = view.answer === key;
      return radio;
    });
    const element = h("fieldset", { class: "nve-ex-choice" }, h("legend", {}, "Your answer"),
      view.options.map(([, text], i) => h("label", {}, radios[i], h("span", {}, text))));
    return { element, value: () => radios.find((radio) => radio.checked)?.value ?? "" };
  },

  order(view, submit) {
    let order = Array.isArray(view.answer) ? [...view.answer] : [];
    const line = h("ol", { class: "nve-ex-order", "aria-label": "your order, head first" });
    const palette = h("div", { class: "nve-ex-palette", role: "group", "aria-label": "blocks to add at the end" });

    const set = (next, focus) => {
      order = next;
      draw();
      if (focus != null) (line.querySelectorAll("button")[focus] ?? palette.querySelector("button:enabled"))?.focus();
    };
    const keys = (event, i) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (way) set(moved(order, i, i + way), Math.min(Math.max(i + way, 0), order.length - 1));
      else if (event.key === "Delete" || event.key === "Backspace") remove(i);
      else if (event.key === "Enter") submit();
      else return;
      event.preventDefault();
    };
    const remove = (i) => set(order.filter((_, k) => k !== i), Math.max(i - 1, 0));

    function draw() {
      line.replaceChildren(
        h("li", { class: "nve-ex-end" }, "head"),
        ...(order.length ? order.map((id, i) => h("li", {}, h("button", {
          type: "button", class: "nve-ex-chip", "data-answer-id": id,
          "aria-label": `block ${id}, place ${i + 1} of ${order.length}; arrow keys move it, Delete takes it out`,
          title: "← and → move it; a click takes it out",
          onclick: () => remove(i), onkeydown: (event) => keys(event, i),
        }, `#${id}`))) : [h("li", { class: "nve-ex-none" }, "press the blocks below in your order")]),
        h("li", { class: "nve-ex-end" }, "tail"));
      palette.replaceChildren(...view.items.map((id) => h("button", {
        type: "button", class: "nve-ex-chip", "data-item-id": id, disabled: order.includes(id),
        "aria-label": `add block ${id} at the end`,
        onclick: () => { set([...order, id]); palette.querySelector(`[data-item-id="${id}"]`)?.nextElementSibling?.focus(); },
      }, `#${id}`)));
    }
    draw();
    const clear = h("button", { type: "button", class: "nve-ex-quiet", onclick: () => set([], 0) }, "Clear");
    return { element: h("div", {}, line, h("div", { class: "nve-ex-tray" }, palette, clear)), value: () => order };
  },
};

/** Draw one view of the exercise into `el`. Returns what cleans up. */
function render({ model, el }) {
  let timer = 0;
  let form, parts, shownKey;

  const send = (message) => {
    model.send(message);
    clearTimeout(timer);
    timer = setTimeout(() => {
      parts.verdict.dataset.outcome = "crashed";
      parts.verdict.replaceChildren(h("div", {}, "! The kernel does not answer. If it was restarted, run this cell again."));
    }, SILENCE_MS);
  };
  const submit = () => send({ action: "check", answer: form.value() });

  /** A new question: everything from the ground. */
  function build(/** @type {View} */ view) {
    form = FORMS[view.kind](view, submit);
    parts = {
      pill: h("span", { class: "nve-ex-pill" }),
      verdict: h("div", { class: "nve-ex-verdict", role: "status", "aria-live": "polite" }),
      hints: h("ol", { class: "nve-ex-hints", "aria-label": "hints", "aria-live": "polite" }),
      hint: h("button", { type: "button", "data-action": "hint", onclick: () => send({ action: "hint" }) }),
      reveal: h("button", { type: "button", "data-action": "reveal", onclick: () => send({ action: "reveal" }) }, "Show answer"),
      root: null,
    };
    parts.root = h("section", {
      class: "nve-ex", "data-exercise": view.id, "data-kind": view.kind, "data-lm-suppress-shortcuts": "true",
      "aria-label": `Exercise: ${view.title}`, onkeydown: (event) => event.stopPropagation(),
    },
    h("header", {}, h("span", { class: "nve-ex-tag" }, "Exercise"), h("h4", {}, view.title), parts.pill),
    view.paragraphs.map((text) => h("p", {}, text)), figure(view), form.element,
    h("div", { class: "nve-ex-buttons" },
      h("button", { type: "button", class: "nve-ex-go", "data-action": "check", onclick: submit }, "Check"),
      parts.hint, parts.reveal,
      h("button", { type: "button", class: "nve-ex-quiet", "data-action": "reset", onclick: () => send({ action: "reset" }) },
        "New numbers")),
    parts.verdict, parts.hints);
    const hadFocus = el.contains(document.activeElement);
    el.replaceChildren(parts.root);
    if (hadFocus) parts.root.querySelector("input, button:enabled")?.focus(); // else keys would go to the notebook
    shownKey = view.key;
  }

  function update() {
    clearTimeout(timer);
    const view = /** @type {View} */ (model.get("view"));
    if (view.key !== shownKey) build(view);
    parts.root.dataset.outcome = view.outcome;
    parts.root.dataset.serial = view.serial;
    parts.pill.textContent = view.solved ? "✓ solved" : view.revealed ? "answer shown" : view.attempts ? "tried" : "";
    parts.pill.dataset.state = view.solved ? "solved" : "open";
    parts.verdict.dataset.outcome = view.outcome;
    parts.verdict.replaceChildren(...view.lines.map((line) => h("div", {}, line)));
    parts.hints.replaceChildren(...view.hints.map((hint) => h("li", {}, hint)));
    parts.hint.textContent = view.hints_left ? `Hint (${view.hints_left} left)` : "No more hints";
    parts.hint.disabled = !view.hints_left;
    parts.reveal.disabled = !view.may_reveal;
    parts.reveal.title = view.may_reveal ? "" : "after two different wrong answers";
  }

  update();
  model.on("change:view", update);
  return () => {
    clearTimeout(timer);
    model.off("change:view", update);
  };
}

export default { render };
