"use strict";
// Draws the pictures. Everything that is written stands in the page without this.
(() => {
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)");
  const themes = {
    light: { ink: "#1b1f24", line: "#d0d7de", panel: "#ffffff", heat: ["#f3f5f7", "#fdd9a8", "#f08a24", "#b93a12", "#4a0e0e"] },
    dark: { ink: "#e6edf3", line: "#30363d", panel: "#161b22", heat: ["#1b222b", "#5c3514", "#c2571a", "#f6a54a", "#fff1c9"] },
  };
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: coarse.matches ? false : "hover",
    // Named one by one: the default ones include sending the picture to a service.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };
  const select = document.getElementById("gantt-step");
  let printing = false;

  function draw(id, figure) {
    const theme = printing || !dark.matches ? themes.light : themes.dark;
    const axis = { gridcolor: theme.line, linecolor: theme.line, zerolinecolor: theme.line, automargin: true };
    const scale = theme.heat.map((colour, index) => [index / (theme.heat.length - 1), colour]);
    const data = figure.data.map((trace) => (trace.type === "heatmap" ? { ...trace, colorscale: scale } : trace));
    const layout = {
      ...figure.layout,
      xaxis: { ...axis, ...figure.layout.xaxis },
      yaxis: { ...axis, ...figure.layout.yaxis },
      font: { family: "system-ui, sans-serif", size: 13, color: theme.ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 20, r: 20, t: 10, b: 20 },
      showlegend: false, // it stands above, in HTML
      hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line, font: { color: theme.ink }, align: "left" },
      // A finger that moves over a picture moves the page.
      dragmode: coarse.matches ? false : "zoom",
      autosize: !printing,
      width: printing ? 680 : undefined,
    };
    return Plotly.react(document.getElementById(id), data, layout, config);
  }

  function drawStep() {
    const option = select.selectedOptions[0];
    document.getElementById("gantt-now").textContent = option.textContent;
    document.getElementById("gantt-picture").setAttribute("aria-label", option.textContent);
    draw("gantt-picture", pictures.gantt[select.value]);
  }

  function drawAll() {
    for (const [id, figure] of Object.entries(pictures.figures)) draw(`${id}-picture`, figure);
    if (select) drawStep();
  }

  if (select) {
    select.addEventListener("change", drawStep);
    for (const link of document.querySelectorAll("a[data-step]")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        select.value = link.dataset.step;
        drawStep();
        const heading = document.getElementById("gantt");
        heading.focus({ preventScroll: true });
        heading.scrollIntoView();
      });
    }
  }
  document.documentElement.classList.add("drawn");
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { printing = true; drawAll(); });
  addEventListener("afterprint", () => { printing = false; drawAll(); });
  drawAll();
})();
