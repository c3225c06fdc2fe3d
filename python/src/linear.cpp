#include "linear.h"

#include "arguments.h"

namespace bindings {
namespace {

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle final_state, const nb::dict& options,
             bool is_out_given) {
  Arguments in("linear_attention");
  const auto q_view = in.input<4>("q", q), k_view = in.input<4>("k", k), v_view = in.input<4>("v", v);
  const auto out_view = in.output<4>("out", out), state_view = in.output<4>("final_state", final_state);
  const attn::LinearAttentionOptions parsed = in.linear_options(options);
  in.done();
  const nb::gil_scoped_release unlocked;
  blaming_given({"final_state", is_out_given ? "final_state" : "out"},
                [&] { attn::linear_attention(q_view, k_view, v_view, out_view, parsed, state_view); });
}

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle dout, nb::handle dfinal_state,
              const nb::dict& gradients, const nb::dict& options) {
  Arguments in("linear_attention_backward");
  const auto q_view = in.input<4>("q", q), k_view = in.input<4>("k", k), v_view = in.input<4>("v", v);
  const auto dout_view = in.input<4>("dout", dout), dstate_view = in.input<4>("dfinal_state", dfinal_state);
  const auto to = [&](const char* name) { return item_of(gradients, name); };
  attn::LinearAttentionGradients wanted;
  wanted.dq = in.output<4>("dq", to("dq"));
  wanted.dk = in.output<4>("dk", to("dk"));
  wanted.dv = in.output<4>("dv", to("dv"));
  wanted.dlog_decay = in.output<4>("dlog_decay", to("dlog_decay"));
  wanted.dbeta = in.output<3>("dbeta", to("dbeta"));
  wanted.dinitial_state = in.output<4>("dinitial_state", to("dinitial_state"));
  const attn::LinearAttentionOptions parsed = in.linear_options(options);
  in.done();
  const nb::gil_scoped_release unlocked;
  blaming_given({"dq", "dk", "dv", "dlog_decay", "dbeta", "dinitial_state"}, [&] {
    attn::linear_attention_backward(q_view, k_view, v_view, dout_view, wanted, parsed, dstate_view);
  });
}

}  // namespace

void add_linear(nb::module_& m) {
  m.def("linear_forward", &forward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
        nb::arg("out").none(), nb::arg("final_state").none(), nb::arg("options"), nb::arg("is_out_given") = false);
  m.def("linear_backward", &backward, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
        nb::arg("dout").none(), nb::arg("dfinal_state").none(), nb::arg("gradients"), nb::arg("options"));
}

}  // namespace bindings
