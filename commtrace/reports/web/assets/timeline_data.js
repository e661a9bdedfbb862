/* The timeline's events as columns of numbers, and where one of them is. */
"use strict";

async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/* Reads columns of variable-length numbers, as reports/web/packed.py writes them. */
class Columns {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  next(count) {
    const column = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      let number = 0;
      let factor = 1;
      let byte;
      do {
        byte = this.bytes[this.at++];
        number += (byte & 0x7f) * factor;
        factor *= 128;
      } while (byte & 0x80);
      column[i] = number;
    }
    return column;
  }
}

/* Times are in ns from the first event, exact as long as a run lasts less than 104 days. */
class Events {
  static async read(data) {
    return new Events(data, new Columns(await inflated(data.packed)));
  }

  constructor(data, columns) {
    Object.assign(this, { span: data.span, labels: data.labels, steps: data.steps, kinds: data.kinds });
    const count = data.lanes.reduce((sum, lane) => sum + lane[3], 0);
    this.start = columns.next(count);
    const duration = columns.next(count);
    this.wait = columns.next(count);
    this.label = columns.next(count);
    this.operation = columns.next(count);
    this.merged = columns.next(count);
    this.operations = {
      kind: columns.next(data.operations),
      size: columns.next(data.operations),
      transfer: columns.next(data.operations),
    };
    this.kind_of = Uint8Array.from(this.label, (number) => this.labels[number][0]);
    this.end = new Float64Array(count);
    this.reach = new Float64Array(count); // the latest end so far in the lane
    let at = 0;
    this.lanes = data.lanes.map(([rank, device, stream, events], number) => {
      const first = at;
      let time = 0;
      let reach = 0;
      for (; at < first + events; at++) {
        time += this.start[at];
        this.start[at] = time;
        this.end[at] = time + duration[at];
        reach = Math.max(reach, this.end[at]);
        this.reach[at] = reach;
      }
      return { rank, device, stream, first, last: at, number };
    });
  }

  /* The first event of a lane that ends after a time, and the first that starts after one. */
  after(lane, time) {
    return bisect(this.reach, lane.first, lane.last, time);
  }

  behind(lane, time) {
    return bisect(this.start, lane.first, lane.last, time);
  }

  /* The event at a time, of several the one drawn last; -1 if there is none within some ns. */
  at(lane, time, within) {
    for (let i = this.behind(lane, time + within) - 1; i >= lane.first; i--) {
      if (this.end[i] + within >= time) return i;
      if (this.reach[i] + within < time) return -1;
    }
    return -1;
  }

  /* The events of the same operation, one for each rank; of an event without one only itself. */
  together(i) {
    if (i < 0 || !this.operation[i]) return i < 0 ? [] : [i];
    const found = [];
    for (let j = 0; j < this.operation.length; j++) {
      if (this.operation[j] === this.operation[i]) found.push(j);
    }
    return found;
  }

  laneOf(i) {
    return this.lanes.find((lane) => i < lane.last);
  }
}

function bisect(sorted, low, high, value) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
