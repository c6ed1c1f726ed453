// Text in, text out: testdata/*.txt hold cases  kernel { ... }  ->  grid, warps, the function or "declined: reason",
// separated by lines of ----. FLASHOVER_BLESS=1 rewrites what stands after ->.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "kernel/triton/tile.h"
#include "kernel/triton/triton.h"

namespace flashover::kernel::triton {
namespace {

std::string trim(std::string s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.pop_back();
  size_t start = 0;
  while (start < s.size() && std::isspace(static_cast<unsigned char>(s[start]))) ++start;
  return s.substr(start);
}

std::string render(const std::string& kernel) {
  try {
    const loops::Kernel k = loops::parse(kernel);
    loops::verify(k);
    const TritonSource s = emit(k, Gpu{});
    std::string signature;
    for (const std::string& t : s.signature) signature += " " + t;
    return "grid " + s.launch.grid[0].str() + ", " + std::to_string(s.warps) + " warps" +
           (s.asserts ? ", asserts" : "") + "," + signature + "\n" + trim(s.text.substr(s.text.find("\n\n\n")));
  } catch (const Declined& d) {
    return std::string("declined: ") + d.what();
  }
}

void run_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream stream;
  stream << in.rdbuf();
  const std::string text = stream.str();
  const bool bless = std::getenv("FLASHOVER_BLESS") != nullptr;
  std::string blessed;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n----", at);
    const std::string test_case = text.substr(at, end == std::string::npos ? std::string::npos : end - at);
    at = end == std::string::npos ? text.size() : std::min(text.size(), text.find('\n', end + 1) + 1);
    const size_t arrow = test_case.find("\n->");
    const std::string kernel = trim(test_case.substr(0, arrow)), got = render(kernel);
    if (bless) {
      blessed += (blessed.empty() ? "" : "----\n") + kernel + "\n->\n" + got + "\n";
      continue;
    }
    ASSERT_NE(arrow, std::string::npos) << path << ": a case without -> (bless it)";
    EXPECT_EQ(got, trim(test_case.substr(arrow + 3))) << path << "\n" << test_case;
  }
  if (bless) std::ofstream(path) << blessed;
}

TEST(Triton, KernelsGiveTheWrittenSource) {
  // __FILE__ is relative to the build folder, where ctest runs; by hand one starts from the root.
  std::filesystem::path root = std::filesystem::path(__FILE__).parent_path() / "testdata";
  if (!std::filesystem::exists(root)) root = "src/kernel/triton/testdata";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    run_file(entry.path());
    ++files;
  }
  EXPECT_GT(files, 0);
}

std::string row_kernel(int64_t rows, int64_t length, const char* vector) {
  const std::string r = std::to_string(rows), l = std::to_string(length), n = std::to_string(rows * length);
  const std::string index =
      std::string(vector) == "inner" ? l + "*i0." + r + " + j0." + l : "i0." + r + " + " + r + "*j0." + l;
  return "kernel {\n p0 = f32[" + n + "] read\n p1 = f32[" + r + "] write\n outer i0." + r +
         "\n acc a0 = sum f32\n vector " + vector + "\n cost 1\n stage j0." + l + " {\n v0 = load f32 p0[" + index +
         "]\n v1 = reduce a0 v0\n }\n stage {\n v0 = acc f32 a0\n v1 = store p1[i0." + r + "] v0\n }\n}\n";
}

TEST(Triton, TilesFollowTheMeasuredRules) {
  struct {
    int64_t rows, length;
    const char* vector;
    bool persistent;
    int64_t x, r;
    int warps;
  } const cases[] = {
      {8192, 768, "inner", true, 1, 1024, 2},    {8192, 4096, "inner", true, 1, 4096, 8},
      {8192, 8192, "inner", true, 1, 8192, 8},   {8192, 512, "inner", true, 2, 512, 2},
      {8192, 64, "inner", true, 16, 64, 2},      {64, 16384, "inner", true, 1, 16384, 16},
      {4096, 16384, "inner", false, 1, 4096, 8}, {4096, 50257, "inner", false, 1, 4096, 8},
      {3072, 256, "outer", false, 16, 128, 2},   {65536, 256, "outer", false, 32, 128, 4},
      {65536, 9, "outer", true, 128, 16, 2},
  };
  for (const auto& c : cases) {
    const Tile t = choose_tile(loops::parse(row_kernel(c.rows, c.length, c.vector)), Gpu{});
    EXPECT_EQ(t.persistent, c.persistent) << c.rows << " " << c.length << c.vector;
    EXPECT_EQ(t.x, c.x) << c.rows << " " << c.length << c.vector;
    EXPECT_EQ(t.r, c.r) << c.rows << " " << c.length << c.vector;
    EXPECT_EQ(t.warps, c.warps) << c.rows << " " << c.length << c.vector;
  }
}

// Sums of rows (or columns) that also write every element, in the order of memory or transposed.
std::string writing_kernel(int64_t rows, int64_t length, const char* vector, bool crossed) {
  const std::string r = std::to_string(rows), l = std::to_string(length), n = std::to_string(rows * length);
  const std::string along = l + "*i0." + r + " + j0." + l, across = "i0." + r + " + " + r + "*j0." + l;
  const std::string read = std::string(vector) == "inner" ? along : across;
  const std::string write = crossed ? (read == along ? across : along) : read;
  return "kernel {\n p0 = bf16[" + n + "] read\n p1 = bf16[" + n + "] write\n p2 = f32[" + r + "] write\n outer i0." +
         r + "\n acc a0 = sum f32\n vector " + vector + "\n cost 1\n stage j0." + l + " {\n v0 = load f32 p0[" + read +
         "]\n v1 = erf f32 v0\n v2 = store p1[" + write + "] v1\n v3 = reduce a0 v1\n }\n stage {\n v0 = acc f32 a0\n" +
         " v1 = store p2[i0." + r + "] v0\n }\n}\n";
}

TEST(Triton, TilesOfRowsThatAreWritten) {
  struct {
    int64_t rows, length;
    const char* vector;
    bool crossed;
    int64_t x, r;
    int warps;
  } const cases[] = {
      {12544, 768, "inner", false, 1, 1024, 2}, {12544, 768, "inner", true, 8, 1024, 8},
      {12544, 256, "inner", true, 8, 256, 2},   {12544, 4096, "inner", true, 2, 4096, 8},
      {300, 768, "inner", true, 1, 1024, 1},    {24576, 768, "outer", false, 64, 64, 8},
      {3072, 768, "outer", false, 16, 128, 2},
  };
  for (const auto& c : cases) {
    const Tile t = choose_tile(loops::parse(writing_kernel(c.rows, c.length, c.vector, c.crossed)), Gpu{});
    EXPECT_EQ(t.x, c.x) << c.rows << " " << c.length << c.vector << c.crossed;
    EXPECT_EQ(t.r, c.r) << c.rows << " " << c.length << c.vector << c.crossed;
    EXPECT_EQ(t.warps, c.warps) << c.rows << " " << c.length << c.vector << c.crossed;
  }
}

TEST(Triton, ExactKernelsApproximateNothing) {
  std::string text = writing_kernel(64, 32, "inner", false);
  text.replace(text.find("p2 = f32"), 8, "p2 = bf16");
  loops::Kernel k = loops::parse(text);
  EXPECT_NE(emit(k, Gpu{}).text.find("fast_erf"), std::string::npos);
  k.exact = true;
  EXPECT_EQ(emit(k, Gpu{}).text.find("fast_erf"), std::string::npos);
}

// v2 is a difference of a product; v3 its negative.
TritonSource of_difference(const std::string& last) {
  return emit(loops::parse("kernel {\n p0 = f32[64] read\n p1 = f32[64] write\n outer i0.64\n vector outer\n cost 1\n"
                           " stage {\n v0 = load f32 p0[i0.64]\n v1 = mul f32 v0 v0\n v2 = sub f32 v0 v1\n"
                           " v3 = neg f32 v2\n v4 = " +
                           last + "\n v5 = store p1[i0.64] v4\n }\n}\n"),
              Gpu{});
}

TEST(Triton, DifferencesThatDecideIfThereIsANumberAreRoundedAsEagers) {
  for (const char* last : {"sqrt f32 v3", "log f32 v2", "reciprocal f32 v3", "div f32 v0 v3"})
    EXPECT_FALSE(of_difference(last).contracts) << last;
  for (const char* last : {"exp f32 v3", "div f32 v3 v0", "mul f32 v3 v0", "sqrt f32 v0", "sqrt f32 v1"})
    EXPECT_TRUE(of_difference(last).contracts) << last;
  EXPECT_NE(key(of_difference("sqrt f32 v3")), key(of_difference("sqrt f32 v0")));
  const auto of_sum = [](const char* operand) {
    std::string text = row_kernel(64, 32, "inner");
    text.replace(text.find("v1 = reduce"), 14,
                 std::string("v1 = mul f32 v0 v0\n v2 = sub f32 v0 v1\n v3 = reduce a0 ") + operand);
    text.replace(text.find("v1 = store"), 10, "v1 = sqrt f32 v0\n v2 = store");
    text.replace(text.rfind(" v0\n"), 3, " v1");
    return emit(loops::parse(text), Gpu{}).contracts;
  };
  EXPECT_FALSE(of_sum("v2"));
  EXPECT_TRUE(of_sum("v1"));
}

TEST(Triton, TheKeyIsTheCodeAndNotItsName) {
  loops::Kernel k = loops::parse(row_kernel(100, 50, "inner"));
  const TritonSource a = emit(k, Gpu{});
  k.label = "sum model.py:3";
  const TritonSource b = emit(k, Gpu{});
  EXPECT_NE(a.name, b.name);
  EXPECT_EQ(key(a), key(b));
  EXPECT_NE(key(a), key(emit(loops::parse(row_kernel(100, 51, "inner")), Gpu{})));
}

TEST(Triton, LargeTensorsGet64BitIndices) {
  const std::string small = emit(loops::parse(row_kernel(1 << 10, 1 << 10, "inner")), Gpu{}).text;
  const std::string large = emit(loops::parse(row_kernel(1 << 20, 1 << 12, "inner")), Gpu{}).text;
  EXPECT_EQ(small.find("int64"), std::string::npos);
  EXPECT_NE(large.find("tl.program_id(0).to(tl.int64)"), std::string::npos);
}

}  // namespace
}  // namespace flashover::kernel::triton
