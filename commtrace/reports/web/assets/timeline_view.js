/* Draws a stretch of the timeline. What is smaller than a pixel becomes one with its neighbours. */
"use strict";

const KINDS = ["compute", "copy", "transfer", "wait"];
const COMMUNICATION = 2;
const WAIT = 3;
const AXIS = 36;
const FAINT = 0.5; // of a pixel: what covers less is drawn lighter
const MANY = 30_000; // events: beyond, a pixel is two wide

/* A box more; one that begins where the last one ends makes that longer. */
function add(boxes, x, y, width) {
  const last = boxes.length - 3;
  if (last >= 0 && boxes[last + 1] === y && boxes[last] + boxes[last + 2] === x) {
    boxes[last + 2] += width;
  } else {
    boxes.push(x, y, width);
  }
}

function duration(ns) {
  for (const [unit, per] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= 0.9995 * per) return `${Number((ns / per).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

/* A time from the start, with as many digits as tell it from one so far away. */
function moment(ns, apart) {
  const digits = Math.min(Math.max(0, 6 - Math.floor(Math.log10(Math.max(apart, 1)))), 6);
  return `${(ns / 1e6).toFixed(digits)} ms`;
}

class View {
  constructor(canvas, events) {
    this.canvas = canvas;
    this.events = events;
    this.context = canvas.getContext("2d");
    this.left = 0;
    this.span = events.span || 1;
    this.scroll = 0;
    this.selected = [];
    this.range = null;
    this.frame_ms = 0;
    this.recolour();
  }

  /* Colours are those that the style sheet gives to the legend. */
  recolour() {
    const namespace = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(namespace, "svg");
    const rect = document.createElementNS(namespace, "rect");
    svg.append(rect);
    document.body.append(svg);
    const colour = (name) => {
      rect.setAttribute("class", name);
      return getComputedStyle(rect).fill;
    };
    this.colours = KINDS.map(colour);
    this.line = colour("idle");
    this.accent = colour("evidence");
    svg.remove();
    this.ink = getComputedStyle(document.body).color;
    this.ground = getComputedStyle(document.body).backgroundColor;
    this.hatch = this.hatched(this.colours[WAIT]);
  }

  /* Waiting is hatched: who sees no colours sees that. */
  hatched(colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const context = tile.getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, 6, 6);
    context.strokeStyle = this.ground;
    context.lineWidth = 1;
    for (const from of [-6, 0, 6]) {
      context.moveTo(from, 6);
      context.lineTo(from + 6, 0);
    }
    context.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.gutter = width < 600 ? 76 : 168;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  get lane_height() {
    return this.events.lanes.length > 40 ? 15 : 20;
  }

  get scale() {
    return (this.width - this.gutter) / this.span;
  }

  time_at(x) {
    return this.left + (x - this.gutter) / this.scale;
  }

  x_of(time) {
    return this.gutter + (time - this.left) * this.scale;
  }

  lane_at(y) {
    if (y < AXIS) return undefined;
    return this.events.lanes[Math.floor((y - AXIS + this.scroll) / this.lane_height)];
  }

  y_of(lane) {
    return AXIS + lane.number * this.lane_height - this.scroll;
  }

  draw() {
    const begun = performance.now();
    const context = this.context;
    context.clearRect(0, 0, this.width, this.height);
    const first = Math.floor(this.scroll / this.lane_height);
    const count = Math.ceil((this.height - AXIS) / this.lane_height) + 1;
    const lanes = this.events.lanes.slice(first, first + count);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, this.width, this.height - AXIS);
    context.clip();
    this.draw_ground(lanes);
    context.save();
    context.beginPath();
    context.rect(this.gutter, AXIS, this.width - this.gutter, this.height - AXIS);
    context.clip();
    this.draw_range();
    this.draw_events(lanes);
    this.draw_selected();
    context.restore();
    this.draw_names(lanes);
    context.restore();
    this.draw_axis();
    this.frame_ms = performance.now() - begun;
  }

  draw_ground(lanes) {
    this.context.fillStyle = this.line;
    this.context.globalAlpha = 0.35;
    for (const lane of lanes) {
      if (lane.rank % 2) this.context.fillRect(0, this.y_of(lane), this.width, this.lane_height);
    }
    this.context.globalAlpha = 1;
  }

  draw_range() {
    if (!this.range) return;
    const [x, right] = [this.x_of(this.range[0]), this.x_of(this.range[1])];
    this.context.fillStyle = this.accent;
    this.context.globalAlpha = 0.12;
    this.context.fillRect(x, AXIS, Math.max(right - x, 2), this.height);
    this.context.globalAlpha = 1;
  }

  draw_events(lanes) {
    const solid = KINDS.map(() => []);
    const faint = KINDS.map(() => []);
    const texts = [];
    const right = this.left + this.span;
    const count = lanes.reduce(
      (sum, lane) => sum + this.events.behind(lane, right) - this.events.after(lane, this.left), 0);
    const pixel = count > MANY ? 2 : 1;
    for (const lane of lanes) this.collect(lane, pixel, solid, faint, texts);
    const context = this.context;
    const height = this.lane_height - 4;
    const dim = this.selected.length ? 0.3 : 1;
    for (const [boxes, alpha] of [[faint, 0.45], [solid, 1]]) {
      context.globalAlpha = alpha * dim;
      boxes.forEach((its, kind) => {
        context.fillStyle = kind === WAIT ? this.hatch : this.colours[kind];
        for (let i = 0; i < its.length; i += 3) context.fillRect(its[i], its[i + 1], its[i + 2], height);
      });
    }
    context.globalAlpha = dim;
    context.fillStyle = this.ground;
    context.font = "11px system-ui, sans-serif";
    for (const [x, y, width, text] of texts) {
      const letters = Math.floor(width / 6.5);
      context.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, x, y);
    }
    context.globalAlpha = 1;
  }

  /* The boxes of a lane: what is a pixel or wider by itself, the rest pixel by pixel. */
  collect(lane, size, solid, faint, texts) {
    const { start, end, wait, kind_of } = this.events;
    const [from, scale, y] = [this.left, this.scale, this.y_of(lane) + 2];
    const cover = [0, 0, 0, 0];
    let pixel = -1;
    const flush = () => {
      if (pixel < 0) return;
      let most = 0;
      for (let kind = 1; kind < 4; kind++) if (cover[kind] > cover[most]) most = kind;
      const sum = cover[0] + cover[1] + cover[2] + cover[3];
      add((sum < FAINT * size ? faint : solid)[most], this.gutter + pixel, y, size);
      cover[0] = cover[1] = cover[2] = cover[3] = 0;
      pixel = -1;
    };
    const last = this.events.behind(lane, from + this.span);
    for (let i = this.events.after(lane, from); i < last; i++) {
      const right = (end[i] - from) * scale;
      if (right < 0) continue;
      const x = (start[i] - from) * scale;
      const kind = kind_of[i];
      const waited = kind === COMMUNICATION ? wait[i] * scale : 0;
      if (right - x >= size) {
        flush();
        const edge = this.gutter + Math.max(x, -1);
        const middle = this.gutter + Math.max(x + waited, -1);
        if (waited > 0) solid[WAIT].push(edge, y, Math.max(middle - edge, 0));
        const width = this.gutter + Math.min(right, this.width) - middle;
        solid[kind].push(middle, y, Math.max(width, 0.5));
        if (width > 36) texts.push([middle + 4, y + this.lane_height - 8, width - 8, this.words(i)]);
      } else {
        const place = Math.max(Math.floor(x / size) * size, 0);
        if (place !== pixel) flush();
        pixel = place;
        cover[kind] += right - x - waited;
        cover[WAIT] += waited;
      }
    }
    flush();
  }

  words(i) {
    const { labels, label, merged } = this.events;
    return merged[i] > 1 ? `${merged[i].toLocaleString("en")} events` : labels[label[i]][1];
  }

  /* The selected operation on every rank, and when the last of them had arrived. */
  draw_selected() {
    const { start, end, operation, wait, kind_of } = this.events;
    const context = this.context;
    const height = this.lane_height - 4;
    for (const i of this.selected) {
      const y = this.y_of(this.events.laneOf(i)) + 2;
      const [x, right] = [this.x_of(start[i]), Math.max(this.x_of(end[i]), this.x_of(start[i]) + 2)];
      const middle = kind_of[i] === COMMUNICATION ? this.x_of(start[i] + wait[i]) : x;
      context.fillStyle = this.hatch;
      context.fillRect(x, y, middle - x, height);
      context.fillStyle = this.colours[kind_of[i]];
      context.fillRect(middle, y, Math.max(right - middle, 1), height);
      context.strokeStyle = this.ink;
      context.lineWidth = 1.5;
      context.strokeRect(x, y, right - x, height);
    }
    if (this.selected.length < 2 || !operation[this.selected[0]]) return;
    const x = this.x_of(Math.max(...this.selected.map((i) => start[i])));
    context.strokeStyle = this.ink;
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(x, AXIS);
    context.lineTo(x, this.height);
    context.stroke();
    context.setLineDash([]);
  }

  draw_names(lanes) {
    const context = this.context;
    context.fillStyle = this.ground;
    context.fillRect(0, AXIS, this.gutter - 4, this.height);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = this.ink;
    for (const lane of lanes) {
      context.fillText(this.name(lane), 4, this.y_of(lane) + this.lane_height - 6);
    }
  }

  name(lane) {
    const where = lane.device === "cpu" ? "thread" : "stream";
    if (this.width < 600) return `${lane.rank} · ${lane.stream}`;
    return `rank ${lane.rank} · ${lane.device === "cpu" ? "" : `${lane.device} `}${where} ${lane.stream}`;
  }

  draw_axis() {
    const context = this.context;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = this.ink;
    context.strokeStyle = this.line;
    context.lineWidth = 1;
    const least = (110 / this.scale) || 1;
    const power = 10 ** Math.floor(Math.log10(least));
    const every = Math.max([1, 2, 5, 10].map((n) => n * power).find((n) => n >= least), 1);
    for (let time = Math.ceil(this.left / every) * every; time <= this.left + this.span; time += every) {
      const x = this.x_of(time);
      context.beginPath();
      context.moveTo(x, 14);
      context.lineTo(x, 18);
      context.stroke();
      const text = moment(time, every);
      const width = context.measureText(text).width;
      if (x + width / 2 < this.width) context.fillText(text, Math.max(x - width / 2, this.gutter), 11);
    }
    this.draw_steps();
  }

  draw_steps() {
    const context = this.context;
    for (const [number, start, end] of this.events.steps) {
      const [x, right] = [Math.max(this.x_of(start), this.gutter), this.x_of(end)];
      if (right < this.gutter || x > this.width) continue;
      context.fillStyle = this.line;
      context.fillRect(x, 20, Math.max(right - x - 1, 1), 14);
      context.fillStyle = this.ink;
      if (right - x > 50) context.fillText(`step ${number}`, x + 4, 31);
    }
  }
}
