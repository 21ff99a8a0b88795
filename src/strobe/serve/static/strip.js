// What each frame block was spent on, and what the stream remembers.

import { draw } from "./timeline.js";

export const PARTS = [
  ["denoise", "denoise: picture out of noise"],
  ["commit", "commit: kept for the next block"],
  ["decode", "decode: to pixels"],
  ["encode", "encode: for the network"],
  ["network", "network"],
  ["paint", "unpack and wait in the page"],
];
const SHOWN = 40;
const SIDE = 46; // room for the label of the budget

export class Strip {
  constructor(svg, legend) {
    this.svg = svg;
    this.blocks = [];
    for (const [name, label] of PARTS) {
      const item = document.createElement("li");
      item.className = `c-${name}`;
      item.textContent = label;
      legend.append(item);
    }
  }

  add(made) {
    const known = made.denoise_ms + made.commit_ms + made.decode_ms;
    this.blocks.push({
      index: made.frame_block,
      first: made.first_frame,
      frames: made.frames,
      denoise: known ? made.denoise_ms : made.block_ms,
      commit: made.commit_ms,
      decode: made.decode_ms,
      encode: made.encode_ms,
      network: 0,
      paint: 0,
      seen: 0,
    });
    if (this.blocks.length > SHOWN) this.blocks.shift();
  }

  // Mean of the pictures of a block: on the way, and in the page's decoder; waiting for the due time is the buffer's.
  paint(meta, skewMs) {
    const block = this.blocks.find((each) => meta.frame >= each.first && meta.frame < each.first + each.frames);
    if (!block) return;
    block.seen += 1;
    block.network += (Math.max(0, meta.arrivedMs - meta.madeMs - skewMs) - block.network) / block.seen;
    block.paint += (meta.decodeMs - block.paint) / block.seen;
  }

  clear() {
    this.blocks = [];
  }

  draw(budgetMs) {
    const width = Math.max(280, this.svg.clientWidth || 360);
    const height = 110;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    const sums = this.blocks.map((block) => PARTS.reduce((sum, [name]) => sum + block[name], 0));
    const top = Math.max(budgetMs * 1.1, ...sums, 1);
    const y = (ms) => height - 14 - (ms / top) * (height - 24);
    const step = (width - SIDE) / SHOWN;
    this.blocks.forEach((block, at) => {
      let from = 0;
      const x = width - SIDE - (this.blocks.length - at) * step;
      const group = draw(this.svg, "g", {});
      for (const [name] of PARTS) {
        const ms = block[name];
        if (ms > 0) draw(group, "rect", { class: `c-${name}`, x, y: y(from + ms), width: Math.max(1, step - 1.5), height: Math.max(0.5, y(from) - y(from + ms)) });
        from += ms;
      }
      const parts = PARTS.filter(([name]) => block[name] > 0).map(([name, label]) => `${label} ${block[name].toFixed(1)} ms`);
      draw(group, "title", {}, `frame block ${block.index}: ${parts.join(", ")}`);
    });
    draw(this.svg, "line", { class: "axis", x1: 0, x2: width - SIDE, y1: height - 14, y2: height - 14 });
    draw(this.svg, "line", { class: "budget", x1: 0, x2: width - SIDE, y1: y(budgetMs), y2: y(budgetMs) });
    draw(this.svg, "text", { x: width - SIDE + 4, y: y(budgetMs) + 4 }, `${Math.round(budgetMs)} ms`);
    draw(this.svg, "text", { x: 0, y: height - 2 }, this.blocks.length ? `blocks ${this.blocks[0].index} to ${this.blocks.at(-1).index}; dashed: the time a block lasts on the screen` : "no frame block yet");
  }
}

// The sink, the frames that the present shot has pinned, the past that goes, and the frame block itself: each behind a gap.
export function drawCache(svg, note, cache) {
  const width = Math.max(280, svg.clientWidth || 360);
  svg.replaceChildren();
  if (!cache) return;
  const { sink, window, filled, end, frame_block: block, shots, begins, pinned, pinned_first: first, sparsity_percent: sparse } = cache;
  const gap = 18;
  const cell = Math.min(22, (width - gap * (pinned ? 2 : 1)) / window - 2);
  const left = (at) => at * (cell + 2) + (at < sink ? 0 : gap) + (pinned && at >= sink + pinned ? gap : 0);
  const rows = pinned ? 3 : 1; // a label each, for narrow cells leave no room beside each other
  svg.setAttribute("viewBox", `0 0 ${width} ${cell + 8 + 14 * rows}`);
  for (let at = 0; at < window; at += 1) {
    const kept = at < sink ? "k-sink" : at < sink + pinned ? "k-shot" : "k-past";
    const kind = at >= filled ? "k-empty" : at >= filled - block ? "k-now" : kept;
    draw(svg, "rect", { class: kind, x: left(at), y: 2, width: cell, height: cell, rx: 3 });
  }
  const label = (at, row, text) => draw(svg, "text", { x: left(at), y: cell + 17 + 14 * row }, text);
  label(0, 0, `sink ${sink}`);
  if (pinned) label(sink, 1, `shot ${shots + 1 - begins}: frames ${first} to ${first + pinned - 1}`);
  label(sink + pinned, rows - 1, `window ${window}, of ${end} made`);
  const shot = pinned ? ` the first frames of ${begins ? "the last" : "its"} shot,` : "";
  const cut = begins ? ` Shot ${shots + 1} begins with this one, whose first frames are pinned from now on.` : "";
  const out = sparse ? ` Of the past between them it leaves out ${sparse} %.` : "";
  note.textContent = `Each new block sees the sink (the stream's first frames),${shot} the newest frames of the window and itself.${cut}${out}`;
}
