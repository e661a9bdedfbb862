/* The timeline under the hand: zoom, pan, hover, select. */
"use strict";

const FIRST_STEPS = 6;

class Timeline {
  constructor(place, events) {
    this.events = events;
    this.tools = place.appendChild(element("div", "tools"));
    this.stage = place.appendChild(element("div", "stage"));
    this.canvas = this.stage.appendChild(element("canvas"));
    this.spacer = this.stage.appendChild(element("div"));
    this.details = place.appendChild(element("div", "details"));
    this.details.setAttribute("aria-live", "polite");
    const keys = place.appendChild(element("p", "hint", place.dataset.keys));
    keys.id = "timeline-keys";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "timeline of all ranks");
    this.canvas.setAttribute("aria-describedby", keys.id);
    this.view = new View(this.canvas, events);
    this.tip = document.getElementById("tip");
    this.pointers = new Map();
    this.add_tools();
    this.listen();
    this.fit();
    if (events.steps.length > 2 * FIRST_STEPS) this.show_first();
  }

  add_tools() {
    const button = (text, label, action) => {
      const made = this.tools.appendChild(element("button", "", text));
      made.type = "button";
      made.setAttribute("aria-label", label);
      made.title = label;
      made.addEventListener("click", action);
    };
    button("+", "zoom in", () => this.zoom(0.5));
    button("−", "zoom out", () => this.zoom(2));
    button("‹", "move left", () => this.pan(-0.5));
    button("›", "move right", () => this.pan(0.5));
    button("All", "show all", () => this.show(0, this.events.span));
    if (this.events.steps.length) {
      button("‹ step", "the step before", () => this.step(-1));
      button("step ›", "the next step", () => this.step(1));
    }
    this.output = this.tools.appendChild(element("output"));
  }

  fit() {
    const { lanes } = this.events;
    const whole = AXIS + lanes.length * this.view.lane_height + 4;
    this.stage.style.height = `min(70vh, ${whole + 2}px)`;
    const height = Math.min(this.stage.clientHeight, whole);
    this.view.resize(this.stage.clientWidth, height);
    this.spacer.style.height = `${whole - height}px`;
    this.redraw();
  }

  redraw() {
    this.wanted ??= requestAnimationFrame(() => {
      this.wanted = null;
      this.view.draw();
      const { left, span } = this.view;
      this.output.textContent = `${duration(span)} from ${moment(left, span / 100)}`;
    });
  }

  /* Of many steps some in the middle: all at once would show nothing but stripes. */
  show_first() {
    const { steps } = this.events;
    const first = Math.floor((steps.length - FIRST_STEPS) / 2);
    this.show(steps[first][1], steps[first + FIRST_STEPS - 1][2]);
  }

  /* From a time to a time, in ns; never outside the run, never less than 20 ns. */
  show(from, to) {
    const span = Math.min(Math.max(to - from, 20), this.events.span || 1);
    this.view.span = span;
    this.view.left = Math.min(Math.max((from + to - span) / 2, 0), (this.events.span || 1) - span);
    this.redraw();
  }

  zoom(factor, x = this.view.gutter + (this.view.width - this.view.gutter) / 2) {
    const time = this.view.time_at(x);
    const left = time - (time - this.view.left) * factor;
    this.show(left, left + this.view.span * factor);
  }

  pan(share) {
    const left = this.view.left + share * this.view.span;
    this.show(left, left + this.view.span);
  }

  step(way) {
    const middle = this.view.left + this.view.span / 2;
    const { steps } = this.events;
    const now = steps.findIndex(([, start, end]) => start <= middle && middle < end);
    const wide = this.view.span >= this.events.span;
    const next = wide || now < 0 ? (way > 0 ? 0 : steps.length - 1) : now + way;
    const [, start, end] = steps[Math.min(Math.max(next, 0), steps.length - 1)];
    this.show(start, end);
  }

  /* A finding's range, in view with as much again around it. */
  mark(start, end) {
    this.view.range = [start, end];
    const around = (end - start) * 0.05 + 1000;
    this.show(start - around, end + around);
  }

  hit(x, y) {
    const lane = this.view.lane_at(y);
    if (!lane || x < this.view.gutter) return -1;
    return this.events.at(lane, this.view.time_at(x), 2 / this.view.scale);
  }

  select(i) {
    this.current = i;
    this.view.selected = this.events.together(i);
    this.describe(i);
    this.redraw();
  }

  /* To the next event of the lane, or to the one beside it in the lanes above or below. */
  move(along, across) {
    const { events, view } = this;
    let i = this.current ?? -1;
    if (i < 0) {
      i = events.after(events.lanes[0], view.left);
    } else if (along) {
      const lane = events.laneOf(i);
      i = Math.min(Math.max(i + along, lane.first), lane.last - 1);
    } else {
      const lane = events.lanes[events.laneOf(i).number + across];
      if (!lane) return;
      i = Math.min(Math.max(events.behind(lane, events.start[i]) - 1, lane.first), lane.last - 1);
    }
    this.select(i);
    const { left, span } = view;
    if (events.end[i] < left || events.start[i] > left + span) this.pan_to(events.start[i]);
    this.stage.scrollTop += Math.min(view.y_of(events.laneOf(i)) - AXIS, 0);
    this.stage.scrollTop += Math.max(view.y_of(events.laneOf(i)) + view.lane_height - view.height, 0);
  }

  pan_to(time) {
    this.show(time - this.view.span / 2, time + this.view.span / 2);
  }

  describe(i) {
    this.details.replaceChildren();
    if (i < 0) return;
    const { events } = this;
    this.details.append(element("strong", "", this.view.words(i)), ` ${this.facts(i)}`);
    const together = this.view.selected;
    if (together.length < 2) return;
    const first = Math.min(...together.map((j) => events.start[j]));
    const last = Math.max(...together.map((j) => events.start[j]));
    const table = this.details.appendChild(element("table"));
    const row = (tag, cells) => {
      const line = table.appendChild(element("tr"));
      for (const cell of cells) line.append(element(tag, "right", cell));
    };
    row("th", ["rank", "arrived after the first", "waited", "then took"]);
    for (const j of [...together].sort((a, b) => events.start[a] - events.start[b])) {
      const took = events.end[j] - events.start[j] - events.wait[j];
      const rank = `${events.laneOf(j).rank}${events.start[j] === last ? " (last)" : ""}`;
      row("td", [rank, exact(events.start[j] - first), exact(events.wait[j]), exact(took)]);
    }
  }

  facts(i) {
    const { events } = this;
    const parts = [this.view.name(events.laneOf(i)), `from ${exact(events.start[i])}`];
    parts.push(`for ${exact(events.end[i] - events.start[i])}`);
    if (events.wait[i]) parts.push(`of which it waited ${exact(events.wait[i])}`);
    const number = events.operation[i] - 1;
    if (number >= 0) {
      const { kind, size, transfer } = events.operations;
      parts.push(events.kinds[kind[number]]);
      if (size[number]) parts.push(`${(size[number] - 1).toLocaleString("en")} bytes`);
      if (transfer[number]) parts.push(`transfer ${duration(transfer[number] - 1)}`);
    }
    return parts.join(" · ");
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const i = this.hit(event.clientX - box.left, event.clientY - box.top);
    this.tip.hidden = i < 0;
    if (i < 0) return;
    const lines = [this.view.words(i), duration(this.events.end[i] - this.events.start[i])];
    if (this.events.wait[i]) lines.push(`waited ${duration(this.events.wait[i])}`);
    lines.push(this.view.name(this.events.laneOf(i)));
    this.tip.textContent = lines.join(" · ");
    const right = Math.min(event.clientX + 14, window.innerWidth - this.tip.offsetWidth - 8);
    this.tip.style.left = `${Math.max(right, 4)}px`;
    this.tip.style.top = `${event.clientY + 18}px`;
  }

  listen() {
    const { canvas, stage } = this;
    stage.addEventListener("scroll", () => {
      this.view.scroll = stage.scrollTop;
      this.redraw();
    });
    new ResizeObserver(() => {
      if (stage.clientWidth !== this.view.width) this.fit();
    }).observe(stage);
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => this.up(event, name === "pointerup"));
    }
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("themechange", () => {
      this.view.recolour();
      this.redraw();
    });
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(1.002 ** event.deltaY, event.offsetX);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / this.view.width);
    }
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    this.dragged = 0;
  }

  moved(event) {
    if (!this.pointers.has(event.pointerId)) {
      this.hover(event);
      return;
    }
    const before = [...this.pointers.values()];
    const by = event.clientX - this.pointers.get(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    this.dragged += Math.abs(by);
    if (before.length === 2) {
      const [a, b] = [...this.pointers.values()];
      const box = this.canvas.getBoundingClientRect();
      this.zoom(Math.abs(before[0] - before[1]) / Math.max(Math.abs(a - b), 1), (a + b) / 2 - box.left);
    } else {
      this.pan(-by / (this.view.width - this.view.gutter));
    }
  }

  up(event, done) {
    this.pointers.delete(event.pointerId);
    if (!done || this.dragged > 4) return;
    const box = this.canvas.getBoundingClientRect();
    this.select(this.hit(event.clientX - box.left, event.clientY - box.top));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-0.1),
      ArrowRight: () => this.pan(0.1),
      ArrowUp: () => this.move(0, -1),
      ArrowDown: () => this.move(0, 1),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.show(0, this.events.span),
      n: () => this.move(1, 0),
      p: () => this.move(-1, 0),
      Escape: () => this.select(-1),
    };
    const action = actions[event.key] ?? actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  }
}

function element(name, classes = "", text = "") {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.textContent = text;
  return made;
}

function exact(ns) {
  return `${ns.toLocaleString("en")} ns`;
}

async function begin() {
  const data = document.getElementById("timeline-data");
  if (!data || !("DecompressionStream" in window)) return;
  const parsed = JSON.parse(data.textContent);
  const events = await Events.read(parsed);
  const root = document.documentElement;
  root.classList.add("has-timeline");
  const place = document.getElementById("timeline");
  const timeline = new Timeline(place, events);
  place.timeline = timeline;
  for (const button of document.querySelectorAll("button[data-start]")) {
    button.addEventListener("click", () => {
      const since = (time) => Number(BigInt(time) - BigInt(parsed.base));
      timeline.mark(since(button.dataset.start), since(button.dataset.end));
      place.scrollIntoView();
    });
  }
}

document.documentElement.classList.add("js");
begin();
