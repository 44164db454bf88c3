<<<<<<<< HEAD:web/dist/assets/rotate-ccw-clock-D8xdejQA.js
import{rt as e}from"./index-CJinAzrj.js";var t={name:`rotate-ccw-clock`,size:24,node:[[`path`,{d:`M3 12a9 9 0 1 0 9-9 9.75 9.75 0 0 0-6.74 2.74L3 8`,key:`1357e3`}],[`path`,{d:`M3 3v5h5`,key:`1xhq8a`}],[`path`,{d:`M12 7v5l4 2`,key:`1fdv2h`}]],aliases:[`history`]};t.node;var n=e(t);export{n as t};
========
import{nt as e}from"./index-BTLdR8Y3.js";var t={name:`rotate-ccw-clock`,size:24,node:[[`path`,{d:`M3 12a9 9 0 1 0 9-9 9.75 9.75 0 0 0-6.74 2.74L3 8`,key:`1357e3`}],[`path`,{d:`M3 3v5h5`,key:`1xhq8a`}],[`path`,{d:`M12 7v5l4 2`,key:`1fdv2h`}]],aliases:[`history`]};t.node;var n=e(t);export{n as t};
>>>>>>>> 6eef2eb (calls: when a call's turn came, when it was sent and answered; replays name their originals):web/dist/assets/rotate-ccw-clock-DsurQsvh.js
