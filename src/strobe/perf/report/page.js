"use strict";
(() => {
  const root = document.documentElement;

  // light and dark
  const button = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  try { if (localStorage.strobeTheme) root.dataset.theme = localStorage.strobeTheme; } catch { /* no storage for a local file */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.strobeTheme = root.dataset.theme; } catch { /* the choice lasts for this page */ }
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();

  // contents start closed where they would push the report down
  if (matchMedia("(max-width: 1179px)").matches) document.querySelector("nav details").open = false;

  // a folded section opens when something links to it
  const unfold = () => document.getElementById(location.hash.slice(1))?.querySelector(":scope > details.fold")?.setAttribute("open", "");
  addEventListener("hashchange", unfold);
  unfold();

  // and every section is printed, where styles alone do not open it
  const folds = () => document.querySelectorAll("details.fold");
  addEventListener("beforeprint", () => folds().forEach((fold) => { fold.dataset.open = fold.open; fold.open = true; }));
  addEventListener("afterprint", () => folds().forEach((fold) => { fold.open = fold.dataset.open === "true"; }));

  // sort a table by a column; text columns sort as text
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.v === undefined ? row.cells[column].textContent : +row.cells[column].dataset.v;
      const body = table.tBodies[0], last = [...body.rows].filter((row) => row.className === "strong");
      const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
      [...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b))).forEach((row) => body.append(row));
      body.append(...last); // totals stay at the end
    }));
  }

  // timelines: zoom, pan and a line that says what is under the pointer
  const ms = (ns) => (ns / 1e6).toPrecision(4);
  for (const figure of document.querySelectorAll(".timeline")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const svg = figure.querySelector(".lanes"), readout = figure.querySelector(".readout");
    const layers = [...figure.querySelectorAll(".zoom")], laneHeight = +figure.dataset.lane;
    let zoom = 1, left = 0; // left edge as a fraction of the whole length
    const draw = () => {
      left = Math.min(Math.max(left, 0), 1 - 1 / zoom);
      for (const layer of layers) { layer.setAttribute("width", `${100 * zoom}%`); layer.setAttribute("x", `${-100 * left * zoom}%`); }
      ticks();
    };
    const axis = figure.querySelector(".ticks");
    const ticks = () => {
      const span = data.length / zoom, raw = span / 8, power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= raw * 0.999);
      const parts = [];
      for (let tick = Math.ceil(left * data.length / step) * step; tick <= left * data.length + span; tick += step) {
        const at = `${100 * tick / data.length}%`;
        parts.push(`<line class="stub" x1="${at}" x2="${at}" y1="0" y2="5"/><text class="tick" x="${at}" y="17" text-anchor="${tick === 0 ? "start" : "middle"}">${+(tick / 1e6).toFixed(6)}</text>`);
      }
      axis.innerHTML = parts.join("");
    };
    const zoomAt = (factor, centre) => {
      const old = zoom;
      zoom = Math.min(Math.max(zoom * factor, 1), 200);
      left += centre * (1 / old - 1 / zoom);
      draw();
    };
    const find = (lane, time) => {
      let low = 0, high = lane.t.length - 1;
      while (low < high) { const mid = (low + high + 1) >> 1; if (lane.t[mid] <= time) low = mid; else high = mid - 1; }
      return low;
    };
    const say = (event) => {
      const box = svg.getBoundingClientRect();
      const lane = data.lanes[Math.floor((event.clientY - box.top) / laneHeight)];
      const time = (left + (event.clientX - box.left) / box.width / zoom) * data.length;
      if (!lane || !lane.t.length || time > lane.length) { readout.textContent = ""; return; }
      const at = find(lane, time);
      const inside = time >= lane.t[at] && time <= lane.t[at] + lane.d[at];
      readout.textContent = inside
        ? `${lane.label}: ${data.kinds[lane.k[at]]} - ${data.names[lane.n[at]]}, ${ms(lane.d[at])} ms, from ${ms(lane.t[at])} ms`
        : `${lane.label}: ${ms(time)} ms, between slices that are drawn`;
    };
    const bar = document.createElement("div");
    bar.className = "zoombar";
    for (const [text, action] of [["Zoom in", () => zoomAt(2, 0.5)], ["Zoom out", () => zoomAt(0.5, 0.5)], ["Whole step", () => { zoom = 1; draw(); }]]) {
      const item = Object.assign(document.createElement("button"), { type: "button", textContent: text });
      item.addEventListener("click", action);
      bar.append(item);
    }
    figure.prepend(bar);
    svg.classList.add("big");
    svg.addEventListener("pointermove", (event) => {
      if (event.buttons === 1) { left -= event.movementX / svg.clientWidth / zoom; draw(); }
      say(event);
    });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // plain wheel scrolls the page
      event.preventDefault();
      zoomAt(event.deltaY < 0 ? 1.25 : 0.8, (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const action = {
        "+": () => zoomAt(1.5, 0.5), "=": () => zoomAt(1.5, 0.5), "-": () => zoomAt(1 / 1.5, 0.5), "0": () => { zoom = 1; draw(); },
        ArrowLeft: () => { left -= 0.1 / zoom; draw(); }, ArrowRight: () => { left += 0.1 / zoom; draw(); },
      }[event.key];
      if (action) { event.preventDefault(); action(); }
    });
  }

  // clips side by side
  for (const group of document.querySelectorAll(".videos")) {
    const play = group.querySelector(".play"), clips = [...group.querySelectorAll("video")];
    play.hidden = clips.length < 2;
    play.addEventListener("click", () => clips.forEach((clip) => { clip.currentTime = 0; clip.play(); }));
  }
})();
