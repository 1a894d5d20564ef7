// The files that a notebook loads: current, one module without imports, every class named for this project, readable.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";

const root = new URL("../../", import.meta.url);
const esm = new URL("nanovllm_edu/widgets/static/control_room.js", root);
const css = readFileSync(new URL("nanovllm_edu/widgets/static/control_room.css", root), "utf8");

test("control_room.js is made from the sources as they are", () => {
  const python = process.env.PYTHON ?? "python3";
  const run = spawnSync(python, ["scripts/build_widgets.py", "--check"], { cwd: fileURLToPath(root), encoding: "utf8" });
  assert.equal(run.status, 0, run.stderr || String(run.error));
});

test("one module: no imports, no addresses, one default export that makes a widget", async () => {
  const text = readFileSync(esm, "utf8");
  const code = text.replace(/\/\*\*[\s\S]*?\*\//g, "");   // JSDoc names types by import("…")
  assert.ok(!/^import |import\(|https?:\/\/(?!www\.w3\.org)/m.test(code), "an import or an address");
  assert.ok(!/innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(/.test(code), "text never becomes markup");
  const module = await import(`data:text/javascript,${encodeURIComponent(text)}`);
  assert.deepEqual(Object.keys(module), ["default"]);
  assert.deepEqual(Object.keys(module.default()).sort(), ["initialize", "render"]);
});

test("every class begins with nve-", () => {
  const rules = css.replace(/\/\*[\s\S]*?\*\//g, "").replace(/"[^"]*"/g, "").replace(/\{[^{}]*\}/g, "{}");
  const classes = [...rules.matchAll(/\.([a-zA-Z][\w-]*)/g)].map((match) => match[1]);
  assert.ok(classes.length > 100);
  assert.deepEqual(classes.filter((name) => !name.startsWith("nve-")), []);
});

// --- contrast (WCAG 2.2, 1.4.3 and 1.4.11) ---

function theme(selector) {
  const block = css.slice(css.indexOf(selector)).match(/\{([^}]*)\}/)[1];
  const variables = Object.fromEntries([...block.matchAll(/(--nve-[\w]+(?:-[\w]+)*):\s*([^;]+);/g)].map((m) => [m[1].slice(6), m[2]]));
  return (name) => (variables[name].match(/#[0-9a-f]{3,6}/i) ?? [null])[0];
}

function luminance(color) {
  const hex = color.length === 4 ? [...color.slice(1)].map((c) => c + c).join("") : color.slice(1);
  const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
}

for (const [name, selector, papers] of [
  ["light", ".nve-room {", ["#ffffff"]], ["dark", '.nve-room[data-theme="dark"] {', ["#171b21", "#111111", "#212121"]],
]) {
  test(`contrast in the ${name} theme, on our own panel and on JupyterLab's`, () => {
    const color = theme(selector);
    const text = [["ink", "sub"], ["ink", "hi"], ["mut", "sub"], ["ok", "ok-bg"], ["bad", "bad-bg"], ["ink", "bad-bg"]];
    for (let i = 0; i < 7; i++) text.push([`t${i}`, `b${i}`], [`t${i}`, "hi"], [`t${i}`, "sub"], ["ink", `b${i}`]);
    for (const [ink, paper] of text) assert.ok(contrast(color(ink), color(paper)) >= 4.5, `${ink} on ${paper}: ${contrast(color(ink), color(paper))}`);
    for (const paper of papers) {
      for (const ink of ["ink", "mut", "ok", "bad", ...Array.from({ length: 7 }, (_, i) => `t${i}`)]) {
        assert.ok(contrast(color(ink), paper) >= 4.5, `${ink} on ${paper}: ${contrast(color(ink), paper)}`);
      }
      for (const mark of ["edge", "focus", ...Array.from({ length: 7 }, (_, i) => `q${i}`)]) {
        assert.ok(contrast(color(mark), paper) >= 3, `${mark} on ${paper}: ${contrast(color(mark), paper)}`);
      }
    }
  });
}
