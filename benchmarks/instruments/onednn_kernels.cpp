#include "benchmarks/instruments/onednn_kernels.hpp"

#include <ATen/Context.h>
#include <ATen/native/verbose_wrapper.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>

namespace tinyllama::instruments {
namespace {

// oneDNN prints by the C library, to standard output alone.
class CaughtOutput {
 public:
  CaughtOutput() {
    std::fflush(stdout);
    file_ = ::memfd_create("onednn", MFD_CLOEXEC);
    if (file_ < 0) return;
    kept_ = ::dup(STDOUT_FILENO);
    if (kept_ >= 0 && ::dup2(file_, STDOUT_FILENO) >= 0) {
      is_caught_ = true;
      torch::verbose::_mkldnn_set_verbose(1);
    }
  }
  ~CaughtOutput() {
    end();
    if (kept_ >= 0) ::close(kept_);
    if (file_ >= 0) ::close(file_);
  }
  CaughtOutput(const CaughtOutput&) = delete;
  CaughtOutput& operator=(const CaughtOutput&) = delete;

  std::string end() {
    if (!std::exchange(is_caught_, false)) return {};
    torch::verbose::_mkldnn_set_verbose(0);
    std::fflush(stdout);
    ::dup2(kept_, STDOUT_FILENO);
    std::string text;
    char piece[4096];
    ::lseek(file_, 0, SEEK_SET);
    for (ssize_t got = 0; (got = ::read(file_, piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<size_t>(got));
    return text;
  }

 private:
  int file_ = -1;
  int kept_ = -1;
  bool is_caught_ = false;
};

bool is_listened_to() {
  return std::getenv("ONEDNN_VERBOSE") != nullptr || std::getenv("DNNL_VERBOSE") != nullptr;
}

}  // namespace

// "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core,undef,src:f32:...,0.0820312":
// older versions have other words before "exec".
std::vector<std::string> onednn_kernels_in(const std::string& verbose) {
  std::map<std::string, double> milliseconds;
  std::istringstream lines(verbose);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("onednn_verbose,") && !line.starts_with("dnnl_verbose,")) continue;
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, ',');) fields.push_back(part);
    const auto exec = std::ranges::find(fields, "exec");
    if (fields.end() - exec < 5 || exec[2] == "reorder") continue;
    milliseconds[exec[2] + " " + exec[3]] += std::atof(fields.back().c_str());
  }
  std::vector<std::string> kernels;
  for (const auto& [kernel, time] : milliseconds) kernels.push_back(kernel);
  std::ranges::stable_sort(kernels, std::greater(),
                           [&](const std::string& kernel) { return milliseconds.at(kernel); });
  return kernels;
}

std::vector<std::string> onednn_kernels(const std::function<void()>& work) {
  if (!at::hasMKLDNN() || is_listened_to()) {
    work();
    return {};
  }
  CaughtOutput caught;
  work();
  return onednn_kernels_in(caught.end());
}

}  // namespace tinyllama::instruments
