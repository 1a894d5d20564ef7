// Measures of a view's layout, evaluated in the page: ({overflow, overlaps}) with one sentence for each finding.
({
  /** Elements wider than their place where nothing lets the reader scroll, and elements that stick out of the view. */
  overflow(root) {
    const name = (node) => node.dataset?.panel ?? (node.getAttribute("class") || node.tagName);
    const flowing = (node) => getComputedStyle(node).overflowX === "visible";
    const right = root.getBoundingClientRect().right;
    const found = [];
    for (const node of [root, ...root.querySelectorAll("*")]) {
      if (node.ownerSVGElement || getComputedStyle(node).display === "inline") continue;
      if (node.clientWidth > 0 && node.scrollWidth > node.clientWidth + 1 && flowing(node)) {
        found.push(`${name(node)} holds ${node.scrollWidth} px in ${node.clientWidth}`);
      }
      let contained = false;
      for (let up = node.parentElement; up && up !== root.parentElement; up = up.parentElement) {
        contained ||= !flowing(up);
      }
      const box = node.getBoundingClientRect();
      const out = Math.round(box.right - right);
      if (!contained && box.width && out > 1) found.push(`${name(node)} ends ${out} px outside of the view`);
    }
    return found;
  },

  /** Pieces of text and controls of one panel whose visible boxes cross by more than 2 × 3 px. */
  overlaps(root) {
    const visible = (node, box) => {
      let { left, top, right, bottom } = box;
      for (let up = node; up && up !== root.parentElement; up = up.parentElement) {
        const style = getComputedStyle(up);
        if (style.visibility === "hidden") return null;
        if (up.ownerSVGElement || style.overflowX === "visible") continue;
        const frame = up.getBoundingClientRect();
        [left, right] = [Math.max(left, frame.left), Math.min(right, frame.right)];
        [top, bottom] = [Math.max(top, frame.top), Math.min(bottom, frame.bottom)];
      }
      return right - left > 1 && bottom - top > 1 ? { left, top, right, bottom } : null;
    };
    const boxesOf = (part) => {
      const boxes = [];
      const add = (node, holder, box, text) => {
        const seen = visible(holder, box);
        if (seen) boxes.push({ ...seen, node, text: text.trim().slice(0, 30) });
      };
      const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const node = walker.currentNode;
        if (!node.data.trim() || node.parentElement.closest("select, title, desc")) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const box of range.getClientRects()) add(node, node.parentElement, box, node.data);
      }
      for (const node of part.querySelectorAll("button, input, select, [data-block-id], [data-queue-id]")) {
        const text = node.getAttribute("aria-label") || node.textContent;
        add(node, node.parentElement, node.getBoundingClientRect(), text);
      }
      return boxes;
    };
    const found = [];
    for (const part of root.querySelectorAll("[data-panel], .nve-top, .nve-bar, .nve-say")) {
      const boxes = boxesOf(part);
      boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
        if (a.node === b.node || a.node.contains(b.node) || b.node.contains(a.node)) return;
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 2 && high > 3) {
          const size = `${Math.round(wide)} × ${Math.round(high)} px`;
          found.push(`${part.dataset.panel ?? part.className}: "${a.text}" over "${b.text}" by ${size}`);
        }
      }));
    }
    return found;
  },
})
