// What the view needs of a widget's model, without a kernel: get, on, off, send. `sent` holds the view's messages.
export class FakeModel {
  constructor(values) {
    this.values = { ...values };
    this.handlers = new Map();
    this.sent = [];
  }

  get(name) {
    return this.values[name];
  }

  on(name, handler) {
    if (!this.handlers.has(name)) this.handlers.set(name, new Set());
    this.handlers.get(name).add(handler);
  }

  off(name, handler) {
    this.handlers.get(name)?.delete(handler);
  }

  send(message) {
    this.sent.push(message);
  }

  /** What the kernel does: a new value of a trait. */
  assign(name, value) {
    this.values[name] = value;
    this.emit(`change:${name}`);
  }

  emit(name, ...args) {
    for (const handler of [...(this.handlers.get(name) ?? [])]) handler(...args);
  }

  get listeners() {
    return [...this.handlers.values()].reduce((n, set) => n + set.size, 0);
  }
}
