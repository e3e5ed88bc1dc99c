// Perfetto's own engine (the wasm that ui.perfetto.dev runs) behind the HTTP interface of
// `trace_processor_shell`, for the official Python client. The engine is not ours and not in this
// repository: it is read, unpatched, from a package that carries it (pins/system.engines;
// Apache-2.0, The Android Open Source Project).
//
// usage: node trace_processor.mjs FOLDER-OF-THE-ENGINE      prints the port it serves on 127.0.0.1
import {webcrypto as crypto} from 'node:crypto';
import {existsSync, readFileSync} from 'node:fs';
import {createServer} from 'node:http';
import {join} from 'node:path';
import {createContext, runInContext} from 'node:vm';

const directory = process.argv[2];

// Field numbers of TraceProcessorRpc (protos/perfetto/trace_processor/trace_processor.proto).
const STREAM_MESSAGE = 1, SEQUENCE = 1, METHOD = 2, FATAL_ERROR = 5;
const ROUTES = {
  '/parse': {method: 1, argument: 101, result: 201},
  '/notify_eof': {method: 2, result: 212},
  '/query': {method: 3, argument: 103, result: 203},
  '/status': {method: 10, result: 210},
};
const AT_ONCE = 32 << 20;  // the engine's request buffer is this large

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}

const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const message = (field, body) => Buffer.concat([varint(field * 8 + 2), varint(body.length), body]);

// All values of a length-delimited field of a message.
function* messages(buffer, wanted) {
  let at = 0;
  const next = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = buffer[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    return value;
  };
  while (at < buffer.length) {
    const tag = next();
    const start = {0: () => (next(), at), 1: () => (at += 8), 2: () => next() + at, 5: () => (at += 4)};
    const wire = tag % 8;
    const end = start[wire]();
    if (wire === 2 && (tag - wire) / 8 === wanted) yield buffer.subarray(at, end);
    at = end;
  }
}

// The engine expects to be a web worker that loads its wasm by XMLHttpRequest.
function worker() {
  const wasm = new Uint8Array(readFileSync(join(directory, 'trace_processor.wasm')));
  class XMLHttpRequest {
    open() {}
    send() { this.response = wasm.buffer; }
  }
  // It probes for 64-bit memory with a tiny module that begins with a memory section; refused, it
  // takes the plain engine.
  const webAssembly = {...Object.fromEntries(Object.getOwnPropertyNames(WebAssembly).map((k) => [k, WebAssembly[k]])),
    Module: function (bytes) {
      if (bytes.byteLength < 64 && bytes[8] === 5) throw new Error('32-bit memory only');
      return new WebAssembly.Module(bytes);
    }};
  const scope = {
    console, performance, crypto, setTimeout, clearTimeout, queueMicrotask, URL, TextDecoder, TextEncoder,
    Uint8Array, ArrayBuffer, Error, TypeError, XMLHttpRequest, WebAssembly: webAssembly,
    WorkerGlobalScope: function () {}, importScripts() {}, location: {href: 'http://127.0.0.1/'},
  };
  scope.self = scope.globalThis = scope;
  const bundles = ['engine_bundle.js', 'engine_bundle.node.js'].map((name) => join(directory, name));
  runInContext(readFileSync(bundles.find(existsSync), 'utf8'), createContext(scope));
  return scope;
}

let replies = [];
let requests = 0;
const port = {postMessage: (reply) => replies.push(Buffer.from(reply))};
worker().onmessage({data: port});

// One request; the engine answers before it returns. Parts of a result merge by concatenation.
function call({method, argument, result}, body) {
  const request = [number(SEQUENCE, requests++), number(METHOD, method)];
  if (argument) request.push(message(argument, body));
  replies = [];
  port.onmessage({data: new Uint8Array(message(STREAM_MESSAGE, Buffer.concat(request)))});
  const answers = [...messages(Buffer.concat(replies), STREAM_MESSAGE)];
  for (const answer of answers) {
    for (const error of messages(answer, FATAL_ERROR)) throw new Error(String(error));
  }
  return Buffer.concat(answers.flatMap((answer) => [...messages(answer, result)]));
}

function serve(url, body) {
  if (url !== '/parse') return call(ROUTES[url], body);
  let last = Buffer.alloc(0);
  for (let at = 0; at < body.length; at += AT_ONCE) last = call(ROUTES[url], body.subarray(at, at + AT_ONCE));
  return last;
}

async function ready() {
  for (let tries = 0; ; tries++) {
    await new Promise((done) => setTimeout(done, 50));
    try {
      return serve('/status', Buffer.alloc(0));
    } catch (error) {
      if (tries > 200) throw error;
      requests = 0;
    }
  }
}

await ready();
const server = createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    try {
      response.end(serve(request.url, Buffer.concat(chunks)));
    } catch (error) {
      response.statusCode = 500;
      response.end(String(error));
    }
  });
});
server.keepAliveTimeout = 0;  // a test may take its time between two questions
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
