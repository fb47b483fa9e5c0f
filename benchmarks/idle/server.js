// A server of Node.js with data that waits to be asked, as a development server or a small service does.
//
//     node server.js SOCKET MEBIBYTES SEED
//
// In: requests by HTTP on a Unix socket; the path is a number. Out: a line for each, `ok` if what was read is what was stored. A request reads the first tenth
// of the data and twenty pieces elsewhere. Must not: do anything unasked. No package beyond Node's own.
"use strict";
const http = require("node:http");

const PIECES_AT_RANDOM = 20;
// What a document takes beyond its text: an object, an array of doubles, entries of the hidden class.
const DOCUMENT_BYTES = 2700;

// mulberry32: the same numbers for the same seed.
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function checked(text) {
  let sum = 0;
  for (let at = 0; at < text.length; at += 7) sum = (Math.imul(sum, 31) + text.charCodeAt(at)) | 0;
  return sum;
}

function filled(mebibytes, seed) {
  const random = generator(seed);
  const below = (bound) => Math.floor(random() * bound);
  const word = () => Array.from({ length: 2 + below(9) }, () => "etaoinshrdlucmfw"[below(16)]).join("");
  const words = Array.from({ length: 5000 }, word);
  const sentences = Array.from({ length: 5000 }, () => Array.from({ length: 8 }, () => words[below(5000)]).join(" "));
  const documents = [];
  for (let number = 0; number < (mebibytes * 1048576) / DOCUMENT_BYTES; number++) {
    const body = Array.from({ length: 40 }, () => sentences[below(5000)]).join(" ");
    documents.push({ id: number, body, numbers: Array.from({ length: 40 }, random), check: checked(body) });
  }
  return documents;
}

const [socket, mebibytes, seed] = process.argv.slice(2);
const documents = filled(Number(mebibytes), Number(seed));
const answer = (request, response) => {
  const random = generator(Number(request.url.slice(1)) || 0);
  const read = documents.slice(0, documents.length / 10);
  for (let count = 0; count < PIECES_AT_RANDOM; count++) read.push(documents[Math.floor(random() * documents.length)]);
  const right = read.every((one) => checked(one.body) === one.check);
  response.writeHead(right ? 200 : 500, { connection: "close" });
  response.end(`${right ? "ok" : "wrong"} ${read.reduce((sum, one) => sum + one.numbers[0], 0).toFixed(3)}\n`);
};
http.createServer(answer).listen(socket);
