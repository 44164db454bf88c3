<<<<<<<< HEAD:web/dist/assets/play-C7N7ttal.js
import{rt as e}from"./index-CJinAzrj.js";var t={name:`play`,size:24,node:[[`path`,{d:`M5 5a2 2 0 0 1 3.008-1.728l11.997 6.998a2 2 0 0 1 .003 3.458l-12 7A2 2 0 0 1 5 19z`,key:`10ikf1`}]]};t.node;var n=e(t);export{n as t};
========
import{nt as e}from"./index-BTLdR8Y3.js";var t={name:`play`,size:24,node:[[`path`,{d:`M5 5a2 2 0 0 1 3.008-1.728l11.997 6.998a2 2 0 0 1 .003 3.458l-12 7A2 2 0 0 1 5 19z`,key:`10ikf1`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 6eef2eb (calls: when a call's turn came, when it was sent and answered; replays name their originals):web/dist/assets/play-hpd3LT0b.js
