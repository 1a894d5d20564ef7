// One view's place in time: a frame number and the state at it, moved by applying and undoing rows.
import { applyPatches, revertPatches } from "./ledger.js";

export class Cursor {
  /** @param {import("./store.js").RowStore} store */
  constructor(store) {
    this.store = store;
    this.rewind();
  }

  rewind() {
    this.generation = this.store.generation;
    this.frame = 0;
    this.state = structuredClone(this.store.initial);
  }

  get end() {
    return this.store.rows.length;
  }

  /** The row that led to this frame, or null at the start. */
  get row() {
    return this.frame > 0 ? this.store.rows[this.frame - 1] : null;
  }

  /** Go to a frame (clamped to what is there). The shorter way: on from here, back from here, or on from the start. */
  goto(frame) {
    if (this.generation !== this.store.generation) this.rewind();
    const target = Math.max(0, Math.min(this.end, Math.round(frame)));
    if (target < this.frame - target) this.rewind();
    const { rows } = this.store;
    while (this.frame < target) applyPatches(this.state, rows[this.frame++].p);
    while (this.frame > target) revertPatches(this.state, rows[--this.frame].p);
  }

  /** The frame to stand at after one step back (-1) or on (1): the last event of a step, the start, or the newest. */
  stepTarget(direction) {
    const ends = this.store.stepEnds;
    if (direction > 0) return ends.find((end) => end > this.frame) ?? this.end;
    for (let i = ends.length - 1; i >= 0; i--) if (ends[i] < this.frame) return ends[i];
    return 0;
  }
}
