// One shared selection: a block or request that is hovered, focused or pinned lights up wherever it is shown.

const REFS = "[data-nve-block],[data-nve-seq]";

/** A reference as {block: [ids]} or {seq: [ids]}. An element may stand for several blocks (copies of one prefix). */
function refOf(node) {
  const element = node instanceof Element ? node.closest(REFS) : null;
  if (!element) return null;
  const ids = (value) => value.split(" ").filter(Boolean).map(Number);
  if (element.dataset.nveBlock) return { block: ids(element.dataset.nveBlock) };
  return element.dataset.nveSeq ? { seq: ids(element.dataset.nveSeq) } : null;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export class Selection {
  /** `owners()` gives block id → [{seq, logical}]; `onChange` is called when the selection is another one. */
  constructor(root, owners, onChange, signal) {
    this.root = root;
    this.owners = owners;
    this.hovered = this.focused = this.pinned = null;
    this.lit = [];
    const change = (slot, value) => {
      if (same(this[slot], value)) return;
      this[slot] = value;
      this.light();
      onChange();
    };
    const on = (type, handler) => root.addEventListener(type, handler, { signal });
    on("pointerover", (event) => change("hovered", refOf(event.target)));
    on("pointerleave", () => change("hovered", null));
    on("focusin", (event) => change("focused", refOf(event.target)));
    on("focusout", () => change("focused", null));
    on("click", (event) => {
      const ref = refOf(event.target);
      if (!ref || event.target.closest("button,input,select")) return;
      change("pinned", same(this.pinned, ref) ? null : ref);
    });
    on("keydown", (event) => {
      const ref = refOf(event.target);
      if (event.key === "Escape") change("pinned", null);
      else if (ref && (event.key === "Enter" || event.key === " ") && !event.target.closest("button,input,select")) {
        event.preventDefault();
        event.stopPropagation();
        change("pinned", same(this.pinned, ref) ? null : ref);
      }
    });
  }

  get current() {
    return this.hovered ?? this.focused ?? this.pinned;
  }

  /** The block that is selected, or null. */
  get block() {
    return this.current?.block?.[0] ?? null;
  }

  /** Mark all that shows the selection: a block with its holders' names, a request with its blocks. */
  light() {
    for (const node of this.lit) node.classList.remove("nve-lit", "nve-lit-soft");
    this.lit = [];
    const current = this.current;
    setDim(this.root, Boolean(current));
    if (!current) return;
    const mark = (selector, name) => {
      for (const node of this.root.querySelectorAll(selector)) {
        node.classList.add(name);
        this.lit.push(node);
      }
    };
    for (const id of current.block ?? []) {
      mark(`[data-nve-block~="${id}"]`, "nve-lit");
      for (const { seq } of this.owners().get(id) ?? []) mark(`.nve-chip[data-nve-seq~="${seq}"]`, "nve-lit-soft");
    }
    for (const id of current.seq ?? []) {
      mark(`[data-nve-seq~="${id}"]`, "nve-lit");
      for (const [block, holders] of this.owners()) {
        if (holders.some((holder) => holder.seq === id)) mark(`.nve-blk[data-nve-block="${block}"]`, "nve-lit-soft");
      }
    }
  }
}

function setDim(root, on) {
  root.classList.toggle("nve-selecting", on);
}
