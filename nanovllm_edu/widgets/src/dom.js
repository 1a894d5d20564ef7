// Small helpers over the DOM. Text reaches the page as text nodes and attributes alone, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, handler] of Object.entries(value)) node.addEventListener(type, handler);
    else setAttr(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

/** An HTML element: `h("b", {class: "nve-x", text: "…", on: {click}}, child, "text")`. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set an attribute if it changes; false, null and undefined take it away, true sets it empty. */
export function setAttr(node, name, value) {
  if (value === false || value === null || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const keyed = new WeakMap();

/**
 * Make `parent`'s children stand for `items`, in order. A key keeps its node, so hover, focus and scrolling survive.
 * `update` is called for each item only when `sign(item)` (all of it that shows) differs from the last time.
 */
export function syncList(parent, items, { key, create, update, sign = () => NaN }) {
  const old = keyed.get(parent) ?? new Map();
  const next = new Map();
  const focused = parent.ownerDocument.activeElement;
  const hadFocus = focused && parent.contains(focused) ? focused : null;
  for (const item of items) {
    const k = key(item);
    const entry = old.get(k) ?? { node: create(item), sign: undefined };
    const signature = sign(item);
    if (entry.sign !== signature) {
      entry.sign = signature;
      update(entry.node, item);
    }
    next.set(k, entry);
  }
  for (const [k, { node }] of old) if (!next.has(k)) node.remove();
  let at = parent.firstChild;
  for (const { node } of next.values()) {
    if (at && node !== at && at.nextSibling === node) {   // one item left this place for a later one: move that one
      const moved = at;
      at = node;
      parent.append(moved);
    }
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  keyed.set(parent, next);
  if (hadFocus?.isConnected && parent.ownerDocument.activeElement !== hadFocus) hadFocus.focus({ preventScroll: true });
}

/** Arrow keys move focus among the items of a list or grid, of which one alone is a tab stop. */
export function roving(container, selector) {
  const items = () => [...container.querySelectorAll(selector)];
  const focus = (item) => {
    for (const other of container.querySelectorAll(`${selector}[tabindex="0"]`)) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  };
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (!item || item.tabIndex === 0) return;
    for (const other of container.querySelectorAll(`${selector}[tabindex="0"]`)) other.tabIndex = -1;
    item.tabIndex = 0;
  });
  container.addEventListener("keydown", (event) => {
    const item = event.target.closest?.(selector);
    if (!item || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const all = items();
    const at = all.indexOf(item);
    const target = {
      ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1], Home: () => all[0], End: () => all[all.length - 1],
      ArrowDown: () => inLine(all, at, 1), ArrowUp: () => inLine(all, at, -1),
    }[event.key]?.();
    if (target === undefined && !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    event.stopPropagation();
    if (target) focus(target);
  });
}

/** The item below (1) or above (-1): in the next line of the layout, the one nearest in x. */
function inLine(all, at, direction) {
  const here = all[at].getBoundingClientRect();
  let best;
  let bestCost = Infinity;
  for (let i = at + direction; i >= 0 && i < all.length; i += direction) {
    const there = all[i].getBoundingClientRect();
    const down = (there.top - here.top) * direction;
    if (down < 2) continue;
    const cost = down * 1e4 + Math.abs(there.left - here.left);
    if (cost >= bestCost) { if (down * 1e4 > bestCost) break; else continue; }
    best = all[i];
    bestCost = cost;
  }
  return best;
}

/** Exactly one item of a roving container is a tab stop: the focused one, else the first. Call it after a change. */
export function keepTabStop(container, selector) {
  if (container.contains(container.ownerDocument.activeElement)) {
    if (container.querySelector(`${selector}[tabindex="0"]`)) return;
  }
  const first = container.querySelector(selector);
  for (const item of container.querySelectorAll(`${selector}[tabindex="0"]`)) if (item !== first) item.tabIndex = -1;
  if (first && first.tabIndex !== 0) first.tabIndex = 0;
}

/** Let the children of a list slide from their old places to their new ones while `change` rearranges them. */
export function slide(list, change) {
  if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) return change();
  const before = new Map([...list.children].map((node) => [node, node.getBoundingClientRect()]));
  change();
  for (const node of list.children) {
    const from = before.get(node);
    if (!from) continue;
    const to = node.getBoundingClientRect();
    const [x, y] = [from.left - to.left, from.top - to.top];
    if (x || y) node.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 200, easing: "ease-out" });
  }
}

/**
 * Content of a widget that is seen in short form and heard in words. (With an aria-label the seen text would have to
 * be part of it, piece by piece; so the words are content too, out of sight.)
 */
export function faceAndWords(words, ...face) {
  return [h("span", { class: "nve-spoken", text: words }), h("span", { class: "nve-face", "aria-hidden": "true" }, ...face)];
}

/** A panel's frame: a heading with a hint, and a body. */
export function panelFrame(name, title, hint) {
  const id = `nve-${name}-${Math.random().toString(36).slice(2, 9)}`;
  const heading = h("h3", { class: "nve-h", id }, title, " ", h("em", { text: hint }));
  const node = h("section", { class: `nve-panel nve-panel-${name}`, "data-panel": name, "aria-labelledby": id }, heading);
  return { node, heading };
}
