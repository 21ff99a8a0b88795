// Prompts over the content of the stream: typed, in effect, first pixel seen; branches; the playhead.

const SVG = "http://www.w3.org/2000/svg";

export function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

export class Timeline {
  constructor(svg) {
    this.svg = svg;
    this.branches = [];
    this.reset();
  }

  reset(text = "", frame = 0) {
    this.prompts = [{ epoch: 0, text, typed: null, effect: frame, seen: frame, ms: null }];
    this.frame = frame;
  }

  at(epoch) {
    return this.prompts.find((each) => each.epoch === epoch);
  }

  typed(epoch, text) {
    this.prompts = this.prompts.filter((each) => each.effect !== null || each.epoch === epoch);
    this.prompts.push({ epoch, text, typed: this.frame, effect: null, seen: null, ms: null });
  }

  effective(epoch, frame) {
    const prompt = this.at(epoch);
    if (prompt) prompt.effect = frame;
  }

  seen(epoch, frame, ms) {
    const prompt = this.at(epoch);
    if (prompt && prompt.seen === null) {
      prompt.seen = frame;
      prompt.ms = ms;
    }
  }

  draw(fps) {
    const width = Math.max(280, this.svg.clientWidth || 360);
    const height = 84;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    const span = 30 * fps;
    const from = Math.max(0, this.frame - span * 0.8);
    const x = (frame) => ((frame - from) / span) * width;
    const base = 58;
    draw(this.svg, "rect", { class: "done", x: Math.max(0, x(0)), y: base - 5, width: Math.max(0, x(this.frame) - Math.max(0, x(0))), height: 10, rx: 5 });
    draw(this.svg, "line", { class: "axis", x1: 0, x2: width, y1: base, y2: base });
    for (let second = Math.ceil(from / fps / 5) * 5; second * fps < from + span; second += 5) {
      draw(this.svg, "text", { x: x(second * fps) + 2, y: height - 4 }, `${second} s`);
      draw(this.svg, "line", { class: "axis", x1: x(second * fps), x2: x(second * fps), y1: base, y2: height - 14 });
    }
    let row = 0;
    const placeOf = (prompt) => x(prompt.effect ?? prompt.typed ?? 0);
    const leftOf = (prompt) => Math.max(2, Math.min(placeOf(prompt) + 4, width - 60));
    for (const [number, prompt] of this.prompts.entries()) {
      const place = placeOf(prompt);
      const [next, below] = this.prompts.slice(number + 1); // the prompt after the next is written in the same row
      const ends = next ? placeOf(next) : width;
      if (ends < 0) continue;
      const y = 14 + 15 * (row++ % 2);
      if (prompt.typed !== null) draw(this.svg, "circle", { class: "typed", cx: x(prompt.typed), cy: base, r: 4 });
      if (prompt.effect !== null) draw(this.svg, "line", { class: "effect", x1: place, x2: place, y1: y + 3, y2: base + 8 });
      if (prompt.seen !== null && prompt.ms !== null) draw(this.svg, "circle", { class: "seen", cx: x(prompt.seen), cy: base, r: 4.5 });
      const told = prompt.ms === null ? prompt.text : `${prompt.text} (${Math.round(prompt.ms)} ms)`;
      const left = leftOf(prompt);
      const fits = Math.floor(below ? (leftOf(below) - left) / 7 : (width - left) / 6);
      if (below && fits < 4) continue;
      draw(this.svg, "text", { x: left, y, class: next ? "" : "strong" }, told.length > fits ? `${told.slice(0, Math.max(3, fits - 1))}…` : told);
    }
    for (const branch of this.branches) {
      const place = x(branch.frame);
      if (place >= 0 && place <= width) draw(this.svg, "path", { class: "fork", d: `M${place} ${base - 6}l5 6l-5 6l-5 -6z` });
    }
    draw(this.svg, "line", { class: "head", x1: x(this.frame), x2: x(this.frame), y1: 36, y2: base + 10 });
  }
}
