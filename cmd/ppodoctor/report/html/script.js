(function () {
  "use strict";
  // A link into a closed <details> opens it; the target gets the focus.
  function reveal() {
    var target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (var box = target; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
    (target.querySelector("summary") || target).focus();
  }
  addEventListener("hashchange", reveal);
  document.addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  reveal();

  // Everything is open on paper.
  addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (d) { d.open = true; });
  });

  document.querySelectorAll(".command").forEach(function (box) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", function () {
      var code = box.querySelector("code"), range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      var done = function () { button.textContent = "copied"; };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, function () {});
      else if (document.execCommand("copy")) done();
    });
    box.appendChild(button);
  });
})();
