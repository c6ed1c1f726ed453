// A convolution's weight in the layouts that oneDNN wants for the sizes that come.
//
// oneDNN chooses a weight's layout by the sizes of the image, too. A weight that lies otherwise is copied in every
// call, between two blocked layouts by code that takes up to ten times as long as the convolution itself. So a
// convolution over symbolic sizes asks, once for each size, which layout is wanted, and keeps one copy per layout.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace flashover::cpu {

struct ConvolutionGeometry {  // one entry a spatial dimension
  std::vector<int64_t> padding, stride, dilation;
  int64_t groups = 1;
};

class ConvolutionWeights {
 public:
  // weight: [out channels, in channels / groups, kernel...]; laid out for images of `typical` sizes [batch, channels,
  // ...] first.
  ConvolutionWeights(const at::Tensor& weight, ConvolutionGeometry geometry, at::IntArrayRef typical);
  // The mkldnn tensor for images [batch, channels, ...] of these sizes. Any thread.
  at::Tensor suited(at::IntArrayRef image);
  at::ScalarType dtype() const { return layouts_.front().scalar_type(); }

 private:
  struct Known {
    std::vector<int64_t> image;
    size_t layout;
  };
  at::Tensor laid_for(const at::Tensor& weight, at::IntArrayRef image) const;
  size_t layout_like(const at::Tensor& laid);  // of layouts_, to which it is added where it is another
  const Known* nearest(at::IntArrayRef image) const;

  const ConvolutionGeometry geometry_;
  size_t most_asked_ = 0;  // sizes for which oneDNN is asked
  std::mutex mutex_;
  std::vector<at::Tensor> layouts_;
  std::vector<Known> known_;
};

// As a tensor of the weight's dtype, which a plan keeps: no elements, the weights are its storage's.
at::Tensor tensor_of(std::unique_ptr<ConvolutionWeights> weights);
ConvolutionWeights& weights_of(const at::Tensor& tensor);  // throws c10::Error for another tensor

}  // namespace flashover::cpu
