// What the tests of the page ask of it.
globalThis.pageChecks = {
  pixels() {
    const canvas = document.getElementById("picture");
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  },
  share(colour) {
    const data = this.pixels();
    let near = 0;
    for (let at = 0; at < data.length; at += 4) near += [0, 1, 2].every((part) => Math.abs(data[at + part] - colour[part]) < 60);
    return (4 * near) / data.length;
  },
  picture() {
    let sum = 0;
    for (const value of this.pixels()) sum = (sum * 31 + value) % 1000000007;
    return String(sum);
  },
  // Where the tiles of the floor lie, in shares of their period: two phases of one wave each, along both diagonals.
  floor() {
    const [canvas, data, period] = [document.getElementById("picture"), this.pixels(), 32];
    const light = Array.from({ length: data.length / 4 }, (_, at) => data[4 * at] + data[4 * at + 1] + data[4 * at + 2]);
    const dark = light.filter((value) => value < 300); // the floor, without shapes
    const mean = dark.reduce((sum, value) => sum + value, 0) / dark.length;
    return [1, -1].map((sign) => {
      let [real, imaginary] = [0, 0];
      light.forEach((value, at) => {
        if (value >= 300) return;
        const angle = (2 * Math.PI * ((at % canvas.width) + sign * Math.floor(at / canvas.width))) / period;
        real += (value - mean) * Math.cos(angle);
        imaginary += (value - mean) * Math.sin(angle);
      });
      return Math.atan2(imaginary, real) / (2 * Math.PI);
    });
  },
  // How far the floor moves from each picture to the next, right and down in pixels, over so many pictures.
  async moves(count) {
    const found = [];
    let [before, last] = [this.picture(), this.floor()];
    while (found.length < count) {
      await new Promise((wake) => requestAnimationFrame(wake));
      const now = this.picture();
      if (now === before) continue;
      const place = this.floor();
      const [down, up] = place.map((value, part) => ((value - last[part] + 1.5) % 1) - 0.5);
      found.push([16 * (down + up), 16 * (down - up)]);
      [before, last] = [now, place];
    }
    return found;
  },
  visible(selector) {
    return [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility() && !each.closest("[hidden]"));
  },
  // What axe-core calls violations, as far as this page could have them.
  broken() {
    const all = [...document.querySelectorAll("*")];
    const ids = all.map((each) => each.id).filter(Boolean);
    const told = (kind, list) => list.map((each) => `${kind}: ${each.outerHTML?.slice(0, 80) ?? each}`);
    const levels = this.visible("h1, h2, h3, h4").map((each) => Number(each.tagName[1]));
    const lost = (each, name) => (each.getAttribute(name) ?? "").split(/\s+/).filter((id) => id && !document.getElementById(id)).length;
    return [
      ...told("an id twice", ids.filter((id, at) => ids.indexOf(id) !== at)),
      ...told("names what is not there", all.filter((each) => ["aria-labelledby", "aria-describedby", "for"].some((name) => lost(each, name)))),
      ...told("no language or title", document.documentElement.lang && document.title ? [] : ["html"]),
      ...told("not one first heading", levels.filter((level) => level === 1).length === 1 ? [] : [levels.join()]),
      ...told("a heading level is left out", levels.filter((level, at) => at && level > levels[at - 1] + 1)),
      ...told("a label on what has no role", all.filter((each) => /^(DIV|SPAN|P)$/.test(each.tagName) && each.hasAttribute("aria-label") && !each.hasAttribute("role"))),
      ...told("a picture without alternative", all.filter((each) => each.tagName === "IMG" && !each.hasAttribute("alt"))),
      ...told("an order of its own", all.filter((each) => each.tabIndex > 0)),
      ...told("too small to touch", this.visible("button, a, input, select").filter((each) => Math.min(each.offsetWidth, each.offsetHeight) < 24)),
      ...told("out of its panel", this.visible(".panel *, .stage *").filter((each) => each.getBoundingClientRect().right > each.closest(".panel, .stage").getBoundingClientRect().right + 0.5)),
    ];
  },
  unlabelled() {
    return [...document.querySelectorAll("button, input, select, a, canvas, svg, progress")]
      .filter((each) => each.checkVisibility() && !each.closest("[hidden], [aria-hidden='true']"))
      .filter((each) => !(each.getAttribute("aria-label") || each.labels?.length || each.textContent.trim() || each.title))
      .map((each) => each.outerHTML.slice(0, 80));
  },
  lowContrast() {
    const parse = (text) => text.match(/[\d.]+/g).map(Number);
    const behind = (each) => {
      for (let at = each; at; at = at.parentElement) {
        const found = parse(getComputedStyle(at).backgroundColor);
        if (found.length < 4 || found[3] > 0.5) return found;
      }
      return [255, 255, 255];
    };
    const light = (rgb) => {
      const [r, g, b] = rgb.slice(0, 3).map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return [...document.querySelectorAll("p, button, a, dt, dd, h1, h2, small, label, li, figcaption, span, kbd, option, input, select, svg text")]
      .filter((each) => each.checkVisibility() && (each.value || [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())))
      .filter((each) => !each.classList.contains("hidden"))
      .map((each) => {
        const style = getComputedStyle(each);
        const [a, b] = [light(parse(each instanceof SVGElement ? style.fill : style.color)), light(behind(each))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.outerHTML.slice(0, 60)];
      })
      .filter(([ratio]) => ratio < 4.5);
  },
};
