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
  unlabelled() {
    return [...document.querySelectorAll("button, input, select, a, canvas, svg, progress")]
      .filter((each) => each.checkVisibility() && !each.closest("[hidden]"))
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
    return [...document.querySelectorAll("p, button, dt, dd, h1, h2, small, label, li, figcaption, span, kbd")]
      .filter((each) => each.checkVisibility() && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
      .filter((each) => !each.classList.contains("hidden"))
      .map((each) => {
        const [a, b] = [light(parse(getComputedStyle(each).color)), light(behind(each))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.outerHTML.slice(0, 60)];
      })
      .filter(([ratio]) => ratio < 4.5);
  },
};
