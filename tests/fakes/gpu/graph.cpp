// Captures: what is launched on the captured stream is kept instead of done, and replays do it, on
// the addresses of then.
#include <ATen/core/GraphImplInterface.h>

#include <mutex>
#include <optional>
#include <vector>

#include "tests/fakes/gpu/fake_gpu.hpp"

namespace fake_gpu {
namespace {

struct Step {
  std::string name;
  Work kind;
  std::function<void()> work;
};

struct Capture {
  c10::Stream stream;
  c10::MempoolId_t pool;
  std::vector<Step> steps;
  bool is_valid = true;
};

// The mode of captures is global: what one thread may not do, none may.
std::recursive_mutex& mutex() {
  static auto& only = *new std::recursive_mutex;
  return only;
}

std::optional<Capture>& underway() {
  static std::optional<Capture> capture;
  return capture;
}

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs&) {
    static c10::CaptureId_t last = 0;
    pool_ = {++last, 0};
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() override { reset(); }

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override {
    check_alive();
    const std::lock_guard lock(mutex());
    const c10::Stream stream = current_stream(current_device());
    TORCH_CHECK(stream.id() != 0, "CUDA graphs must be captured on a non-default stream.");
    TORCH_CHECK(!underway(), "operation not permitted when stream is capturing (another capture)");
    if (pool != c10::MempoolId_t{0, 0}) pool_ = pool;
    begin_pool(pool_);
    underway() = Capture{.stream = stream, .pool = pool_, .steps = {}};
    ++counts().captures;
  }
  void capture_end() override {
    const std::lock_guard lock(mutex());
    TORCH_CHECK(underway(), "no capture is underway");
    TORCH_CHECK(underway()->stream == current_stream(current_device()),
                "Capture must end on the same stream it began on.");
    Capture capture = std::move(*underway());
    underway().reset();
    TORCH_CHECK(capture.is_valid, "operation failed due to a previous error during capture");
    steps_ = std::move(capture.steps);
    is_whole_ = true;
  }
  void instantiate() override {}
  void replay() override {
    TORCH_CHECK(is_whole_, "replay without a preceding successful capture.");
    refuse_in_capture("a replay");
    ++counts().replays;
    const c10::Stream stream = current_stream(current_device());
    const auto begin = Clock::now();
    for (const Step& step : steps_) launch_replayed(stream, step.name, step.kind, step.work);
    note_call("GraphLaunch", begin, Clock::now());
  }
  void reset() override {
    steps_.clear();
    is_whole_ = false;
    end_pool(pool_);
  }
  c10::MempoolId_t pool() const override { return pool_; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  std::vector<Step> steps_;
  c10::MempoolId_t pool_;
  bool is_whole_ = false;
};

}  // namespace

bool is_capturing() {
  const std::lock_guard lock(mutex());
  return underway().has_value();
}

bool is_captured(const c10::Stream& stream) {
  const std::lock_guard lock(mutex());
  return underway() && underway()->stream == stream;
}

c10::MempoolId_t pool_of_capture() {
  const std::lock_guard lock(mutex());
  return underway()->pool;
}

void keep_step(const std::string& name, Work kind, std::function<void()> work) {
  const std::lock_guard lock(mutex());
  underway()->steps.push_back({name, kind, std::move(work)});
}

void invalidate_capture() {
  const std::lock_guard lock(mutex());
  if (underway()) underway()->is_valid = false;
}

}  // namespace fake_gpu

// The registry pastes the class's name.
namespace at {
using FakeGpuGraph = fake_gpu::Graph;
C10_REGISTER_CLASS(GraphImplRegistry, CUDA, FakeGpuGraph)
}  // namespace at
