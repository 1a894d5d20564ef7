// The source of the function that made the current event, its line lit.
import { h, panelFrame, setAttr, setText } from "./dom.js";

/**
 * What there is to show of a row: null at the start, else {file, function, line, source}.
 * `source` is {first_line, lines}, or null when the text of that line isn't at hand.
 */
export function codeOf(row, sources) {
  if (!row?.e.at) return null;
  const [file, name, line] = row.e.at;
  const known = Object.hasOwn(sources ?? {}, `${file}:${name}`) ? sources[`${file}:${name}`] : null;
  const inside = known && line >= known.first_line && line < known.first_line + known.lines.length;
  return { file, function: name, line, source: inside ? known : null };
}

/** The spaces that all lines of a function begin with. */
export function commonIndent(lines) {
  const indents = lines.filter((line) => line.trim()).map((line) => line.length - line.trimStart().length);
  return indents.length ? Math.min(...indents) : 0;
}

export function createCode(view) {
  const { node, heading } = panelFrame("code", "Code", "");
  const where = heading.querySelector("em");
  const list = h("div", { class: "nve-code", tabindex: "0", role: "group" });
  const note = h("p", { class: "nve-hint" });
  node.append(list, note);
  let shown = null;
  let lit = null;
  const draw = (code) => {
    const indent = commonIndent(code.source.lines);
    list.replaceChildren(...code.source.lines.map((text, i) => h("div", { class: "nve-codeline", "data-line": code.source.first_line + i },
      h("span", { class: "nve-lineno", "aria-hidden": "true", text: String(code.source.first_line + i) }),
      h("code", { text: text.slice(indent) || " " }))));
    list.scrollTop = 0;
  };
  return {
    node,
    update() {
      const code = codeOf(view.row, view.model.get("sources"));
      setText(where, code ? `${code.file} · ${code.function}, line ${code.line}` : "the line that made the change");
      list.hidden = !code?.source;
      note.hidden = !list.hidden;
      if (!code?.source) {
        setText(note, code ? `The source of this line isn’t here: it is ${code.file}, line ${code.line}, in ${code.function}, of another version or another session.`
          : view.row ? "This event does not say which line made it." : "Nothing has happened yet. Each event shows the line that made it here.");
        shown = lit = null;
        return;
      }
      if (shown !== code.source) {
        shown = code.source;
        lit = null;
        draw(code);
      }
      setAttr(list, "aria-label", `Source of ${code.function}; line ${code.line} made the change`);
      const line = list.children[code.line - shown.first_line];
      if (line === lit) return;
      if (lit) setAttr(lit, "aria-current", false);
      setAttr(line, "aria-current", "true");
      lit = line;
      const top = line.offsetTop - list.offsetTop;
      if (top < list.scrollTop + 20 || top > list.scrollTop + list.clientHeight - 60) list.scrollTop = top - list.clientHeight / 3;
    },
  };
}
