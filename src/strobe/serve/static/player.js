// One stream: the socket, the decoder, the playout clock and the canvas.

const HEADER = 24;
const CODECS = { 1: "h264", 2: "jpeg" };
export const VERSION = 1;

export async function bestCodec() {
  if (!("VideoDecoder" in globalThis) || !globalThis.isSecureContext) return "jpeg";
  try {
    const { supported } = await VideoDecoder.isConfigSupported({ codec: "avc1.42C01F", optimizeForLatency: true });
    return supported ? "h264" : "jpeg";
  } catch {
    return "jpeg";
  }
}

// The codec string of H.264 is in the first bytes of its sequence parameter set.
function codecOf(data) {
  for (let at = 0; at + 7 < data.length; at += 1) {
    if (data[at] === 0 && data[at + 1] === 0 && data[at + 2] === 1 && (data[at + 3] & 31) === 7) {
      return "avc1." + [4, 5, 6].map((next) => data[at + next].toString(16).padStart(2, "0")).join("");
    }
  }
  return null;
}

export class Player {
  // `on` has a function for each message type, and `paint`, `first`, `lost`, `stall`.
  constructor(canvas, on) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.on = on;
    this.late = [];
    this.secret = "";
    this.playing = true;
    this.closed = false;
    this.tries = this.generation = this.stalls = this.stallMs = 0;
    this.clear();
    this.tick = this.tick.bind(this);
    requestAnimationFrame(this.tick);
  }

  clear() {
    for (const item of this.queue ?? []) item.image.close();
    this.queue = [];
    this.pending = new Map();
    this.due = null;
    this.dry = null;
    this.epoch = -1;
    if (this.decoder?.state === "configured") this.decoder.close();
    this.decoder = null;
  }

  async open(options = {}) {
    this.options = { ...(this.options ?? {}), ...options };
    this.codec = this.options.codec || (this.codec ?? (await bestCodec()));
    this.openedAt = performance.now();
    const address = new URL("v1/stream", document.baseURI); // beside this page, wherever a proxy has put it
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.addEventListener("open", () => {
      const { prompt = "", seed = 0, preset = "", image = "" } = this.options;
      const opening = { type: "open", v: VERSION, codec: this.codec };
      const resumed = { resume: this.secret, frame: this.next ?? null, generation: this.generation };
      socket.send(JSON.stringify({ ...opening, ...(this.secret ? resumed : { prompt, seed, preset, image }) }));
    });
    socket.addEventListener("message", (event) => {
      if (socket !== this.socket) return;
      if (typeof event.data === "string") this.hear(JSON.parse(event.data));
      else this.take(event.data);
    });
    socket.addEventListener("close", () => {
      if (socket === this.socket && !this.closed) this.again();
    });
  }

  again() {
    this.on.lost?.(this.tries);
    const wait = Math.min(8000, 300 * 2 ** this.tries);
    this.tries += 1;
    this.retry = setTimeout(() => this.open(), wait);
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  close() {
    this.closed = true;
    clearTimeout(this.retry);
    this.say({ type: "close" });
    this.socket?.close();
    this.clear();
  }

  hear(message) {
    if (message.type === "welcome") {
      this.tries = 0;
      if (this.secret !== message.secret) {
        this.stalls = this.stallMs = 0;
        this.hear({ type: "state", state: "playing" }); // as a new stream does
      } else if (!this.playing) this.say({ type: "pause" }); // its answer is shown; a server that took it over plays
      this.secret = message.secret;
      this.generation = message.generation;
      this.next = message.resumed_at_frame;
      this.fps = message.fps;
      this.bufferMs = message.start_buffer_ms;
      if (this.canvas.width !== message.width) this.canvas.width = message.width;
      if (this.canvas.height !== message.height) this.canvas.height = message.height;
      this.clear();
    } else if (message.type === "flushed") {
      this.generation = message.generation;
      this.next = message.frame;
      this.clear();
    } else if (message.type === "refused") {
      const gone = message.retry_s === null; // else the stream is there, and may be had in a moment
      this.closed = !this.secret || (gone && !this.on.gone);
      if (!this.closed) {
        if (gone) this.secret = "";
        if (gone) this.on.gone();
        this.socket.close();
        return;
      }
    } else if (message.type === "ended" && message.reason.includes("another connection")) {
      this.closed = true;
    } else if (message.type === "state") {
      this.playing = message.state === "playing";
      if (!this.playing) this.begin(performance.now()); // a pause is no stall
      this.due = this.playing && this.queue.length ? performance.now() : null; // no picture may come before these are painted
    }
    this.on[message.type]?.(message);
  }

  take(buffer) {
    const view = new DataView(buffer);
    if (view.getUint8(0) !== VERSION) return;
    const meta = {
      codec: CODECS[view.getUint8(1)],
      key: view.getUint8(2) === 1,
      generation: view.getUint32(4, true),
      frame: view.getUint32(8, true),
      epoch: view.getUint32(12, true),
      madeMs: Number(view.getBigUint64(16, true)) / 1000,
      arrived: performance.now(),
      arrivedMs: performance.timeOrigin + performance.now(),
    };
    if (meta.generation !== this.generation) return;
    const data = new Uint8Array(buffer, HEADER);
    if (meta.codec === "h264") this.decode(meta, data);
    else this.bitmap(meta, data);
  }

  decode(meta, data) {
    if (meta.key && !this.decoder) {
      const codec = codecOf(data);
      if (!codec) return;
      const decoder = new VideoDecoder({
        output: (image) => {
          const found = this.pending.get(image.timestamp);
          this.pending.delete(image.timestamp);
          if (found && decoder === this.decoder) this.arrive(found, image);
          else image.close();
        },
        error: () => {
          if (decoder !== this.decoder) return;
          this.codec = "jpeg"; // this browser cannot decode it after all
          this.socket.close();
        },
      });
      decoder.configure({ codec, optimizeForLatency: true });
      this.decoder = decoder;
    }
    if (!this.decoder || this.decoder.state !== "configured") return;
    const timestamp = Math.round((meta.frame * 1e6) / this.fps);
    this.pending.set(timestamp, meta);
    this.decoder.decode(new EncodedVideoChunk({ type: meta.key ? "key" : "delta", timestamp, data }));
  }

  bitmap(meta, data) {
    const image = createImageBitmap(new Blob([data], { type: "image/jpeg" }));
    const arrive = ([ready]) => (meta.generation === this.generation ? this.arrive(meta, ready) : ready.close());
    this.chain = Promise.all([image, this.chain]).then(arrive).catch(() => {}); // a picture that cannot be decoded is left out
  }

  arrive(meta, image) {
    const now = performance.now();
    meta.decodeMs = now - meta.arrived;
    if (meta.epoch > this.epoch) {
      // A new prompt is shown at once: what waits is of the old one.
      const first = this.epoch < 0;
      this.epoch = meta.epoch;
      if (!first) {
        for (const item of this.queue) item.image.close();
        this.queue = [];
        if (this.playing) this.begin(now);
      }
    }
    this.queue.push({ meta, image });
    if (meta.codec === "jpeg") this.say({ type: "received", frame: meta.frame, generation: meta.generation });
    if (this.due === null && this.playing && this.queue.length >= Math.max(1, Math.round((this.bufferMs / 1000) * this.fps))) {
      this.begin(now);
    }
  }

  // Starts the clock; a stall ends.
  begin(now) {
    this.due = now;
    if (this.dry === null) return;
    this.stallMs += now - this.dry;
    this.dry = null;
    this.on.stall?.(false);
  }

  tick(now) {
    if (this.closed) return;
    requestAnimationFrame(this.tick);
    if (this.due === null || !this.playing) return;
    const step = 1000 / this.fps;
    if (!this.queue.length) {
      if (now > this.due + step) {
        this.stalls += 1;
        this.dry = this.due;
        this.due = null;
        this.on.stall?.(true);
      }
      return;
    }
    if (now + 2 < this.due) return;
    const { meta, image } = this.queue.shift();
    this.context.drawImage(image, 0, 0, this.canvas.width, this.canvas.height);
    image.close();
    const late = Math.max(0, now - this.due);
    this.due = late > 4 * step ? now + step : this.due + step;
    this.late.push(late);
    if (this.late.length > 300) this.late.shift();
    this.seen(meta, late);
    if (this.openedAt !== null) this.on.first?.(performance.now() - this.openedAt);
    this.openedAt = null;
    this.on.paint?.(meta, late);
  }

  seen(meta, late) {
    this.next = meta.frame + 1;
    const paintedMs = performance.timeOrigin + performance.now();
    this.say({
      type: "seen",
      frame: meta.frame,
      generation: meta.generation,
      epoch: meta.epoch,
      waiting: this.queue.length,
      late_ms: late,
      decode_ms: meta.decodeMs,
      made_to_paint_ms: Math.max(0, paintedMs - meta.madeMs),
      stalls: this.stalls,
      stall_ms: this.stallMs,
    });
  }

  get bufferedMs() {
    return this.fps ? (1000 * this.queue.length) / this.fps : 0;
  }

  lateP95() {
    const sorted = [...this.late].sort((a, b) => a - b);
    return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(0.95 * sorted.length))] : null;
  }
}
