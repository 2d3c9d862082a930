// Selecting jobs of a list, for what is done with many at once; and two patches, to compare them.
function comparePair() {
  const form = document.querySelector("form[action='/patches/compare']");
  form?.addEventListener("change", () => {
    const count = form.querySelectorAll("input[name='with']:checked").length;
    if (count === 2) form.requestSubmit();
  });
}

export function followSelection() {
  comparePair();
  const form = document.getElementById("bulk");
  if (!form) return;
  const all = document.getElementById("pick-all");
  const boxes = () => [...document.querySelectorAll("input[name='job'][form='bulk']")];

  function show() {
    const picked = boxes().filter((box) => box.checked).length;
    document.getElementById("picked").textContent = picked
      ? `${picked} selected`
      : "None selected";
    for (const button of form.querySelectorAll("button")) button.disabled = picked === 0;
    all.checked = picked > 0 && picked === boxes().length;
    all.indeterminate = picked > 0 && !all.checked;
  }

  all.addEventListener("change", () => {
    for (const box of boxes()) box.checked = all.checked;
    show();
  });
  document.addEventListener("change", (event) => {
    if (event.target.name === "job") show();
  });
  show();
}
