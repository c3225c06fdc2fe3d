#include "convolution.h"

#include "arguments.h"
#include "attn/linear_convolution.h"

namespace bindings {
namespace {

/// The arguments that forward and backward share.
struct Convolved {
  attn::ConstView<3> x;
  attn::ConstView<2> weight;
  attn::CausalConvolutionOptions options;

  Convolved(Arguments& in, nb::handle x_given, nb::handle weight_given, nb::handle bias, bool silu,
            nb::handle initial_state, nb::handle cu_seqlens, nb::handle segment_ids)
      : x(in.input<3>("x", x_given)), weight(in.input<2>("weight", weight_given)) {
    options.bias = in.input<1>("bias", bias);
    options.silu = silu;
    options.initial_state = in.input<3>("initial_state", initial_state);
    options.cu_seqlens = in.integers("cu_seqlens", cu_seqlens);
    options.segment_ids = in.input<2>("segment_ids", segment_ids);
  }
};

void forward(nb::handle x, nb::handle weight, nb::handle bias, bool silu, nb::handle initial_state,
             nb::handle cu_seqlens, nb::handle segment_ids, nb::handle out, nb::handle final_state) {
  Arguments in("causal_convolution");
  const Convolved given(in, x, weight, bias, silu, initial_state, cu_seqlens, segment_ids);
  const auto out_view = in.output<3>("out", out), final_view = in.output<3>("final_state", final_state);
  in.done();
  const nb::gil_scoped_release unlocked;
  attn::causal_convolution(given.x, given.weight, out_view, given.options, final_view);
}

void backward(nb::handle x, nb::handle weight, nb::handle bias, bool silu, nb::handle initial_state,
              nb::handle cu_seqlens, nb::handle segment_ids, nb::handle dout, nb::handle dfinal_state,
              const nb::dict& gradients) {
  Arguments in("causal_convolution_backward");
  const Convolved given(in, x, weight, bias, silu, initial_state, cu_seqlens, segment_ids);
  const auto dout_view = in.input<3>("dout", dout), dfinal_view = in.input<3>("dfinal_state", dfinal_state);
  const auto to = [&](const char* name) { return item_of(gradients, name); };
  attn::CausalConvolutionGradients wanted;
  wanted.dx = in.output<3>("dx", to("dx"));
  wanted.dweight = in.output<2>("dweight", to("dweight"));
  wanted.dbias = in.output<1>("dbias", to("dbias"));
  wanted.dinitial_state = in.output<3>("dinitial_state", to("dinitial_state"));
  in.done();
  const nb::gil_scoped_release unlocked;
  attn::causal_convolution_backward(given.x, given.weight, dout_view, wanted, given.options, dfinal_view);
}

}  // namespace

void add_convolution(nb::module_& m) {
  m.def("convolution_forward", &forward, nb::arg("x").none(), nb::arg("weight").none(), nb::arg("bias").none(),
        nb::arg("silu"), nb::arg("initial_state").none(), nb::arg("cu_seqlens").none(), nb::arg("segment_ids").none(),
        nb::arg("out").none(), nb::arg("final_state").none());
  m.def("convolution_backward", &backward, nb::arg("x").none(), nb::arg("weight").none(), nb::arg("bias").none(),
        nb::arg("silu"), nb::arg("initial_state").none(), nb::arg("cu_seqlens").none(), nb::arg("segment_ids").none(),
        nb::arg("dout").none(), nb::arg("dfinal_state").none(), nb::arg("gradients"));
}

}  // namespace bindings
