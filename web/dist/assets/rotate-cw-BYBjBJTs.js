<<<<<<<< HEAD:web/dist/assets/rotate-cw-BYBjBJTs.js
import{rt as e}from"./index-CJinAzrj.js";var t={name:`rotate-cw`,size:24,node:[[`path`,{d:`M21 12a9 9 0 1 1-9-9c2.52 0 4.93 1 6.74 2.74L21 8`,key:`1p45f6`}],[`path`,{d:`M21 3v5h-5`,key:`1q7to0`}]]};t.node;var n=e(t);export{n as t};
========
import{nt as e}from"./index-BTLdR8Y3.js";var t={name:`rotate-cw`,size:24,node:[[`path`,{d:`M21 12a9 9 0 1 1-9-9c2.52 0 4.93 1 6.74 2.74L21 8`,key:`1p45f6`}],[`path`,{d:`M21 3v5h-5`,key:`1q7to0`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 6eef2eb (calls: when a call's turn came, when it was sent and answered; replays name their originals):web/dist/assets/rotate-cw-FXGZ4tZB.js
